"""What `mesa-lens readout` writes, made up: under origin a token is half lost and half moved in layer 1."""

from synthetic import of_run

from probe.commands.readout.result import READOUT, Interval, LensRead, Probed, ProbeRead, Readout
from probe.files import write_result
from probe.store.result_file import as_json

M, LONGEST = 256, 1024
NONE = Interval(*[float("nan")] * 3)


def summary(model="default", trained=True):
    """Two layers; rerope loses nothing. trained: whether the model's own loss tells that it is."""
    probes, lens = [], []
    for layer in (0, 1):
        for method in ("origin", "rerope"):
            for length in (M, LONGEST):
                broken = method == "origin" and length == LONGEST
                lens.append(
                    LensRead(
                        method=method, length=length, layer=layer, n=8, loss=_near(2.0 + broken), is_above=broken,
                        excess=_near(1.0 * broken), rank=3.0, probability=0.4, entropy=2.0, kl=0.5,
                    )
                )  # fmt: skip
                probes.append(_probe(layer, method, length, broken, trained))
    return Readout(
        model=model, trained_length=M, seed=0, executor="fused", versions={"torch": "2.13.0"},
        methods={name: {"name": name} for name in ("origin", "rerope")}, reference="origin", hook="resid_post",
        lengths=[M, LONGEST], layers=[0, 1], tokens=64, training=4, test=4, loss=_near(2.0), frequencies=5.0,
        is_trained=trained, tasks_left=0, probed={"previous-1": Probed("classes", 20, "the 20 most frequent")},
        lens=lens, probes=probes,
    )  # fmt: skip


def write(folder, **options):
    """The summary as the command leaves it; returns the folder."""
    (folder / READOUT.command).mkdir(parents=True)
    write_result(folder / READOUT.path, as_json(summary(**options)) | of_run(folder))
    return folder


def _probe(layer, method, length, broken, trained):
    inside, refit, transfer = 0.8 + 0.1 * layer, 0.7 if broken else 0.8 + 0.1 * layer, 0.5 if broken else 0.8
    return ProbeRead(
        probe="previous-1", method=method, length=length, layer=layer, n=4, tokens=100, strength=0.01, chance=0.2,
        inside=_near(inside), transfer=_near(transfer), refit=_near(refit), by_reference=_near(transfer),
        control=_near(0.3), control_refit=_near(0.3), selectivity=_near(inside - 0.3),
        moved=NONE if length == M else _near(refit - transfer), lost=NONE if length == M else _near(inside - refit),
        returned=NONE if method == "origin" or length == M else _near(0.3), is_read=trained,
        is_moved=broken and trained, is_lost=broken and trained,
        is_returned=method == "rerope" and length == LONGEST and trained,
    )  # fmt: skip


def _near(mean):
    return Interval(mean, mean - 0.05, mean + 0.05)

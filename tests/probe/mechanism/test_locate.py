"""Interventions on a model whose one position-dependent head is planted, and where there is nothing to find."""

import json
from functools import cache

import headed
import numpy as np
import pytest
import tiny
import torch
from commands import main
from elsewhere import Elsewhere
from headed import HEAD, planted
from tqdm import tqdm

import mesa
from probe.capture.bridge import bridge_to
from probe.experiment.runner import LOCAL
from probe.mechanism.attribution import attribute
from probe.mechanism.clamp import Clamp, stand_ins
from probe.mechanism.contrast import BROKEN, MENDED, Contrast
from probe.mechanism.interventions import Intervention, weaves
from probe.mechanism.passes import Edit, Item, Start, run
from probe.mechanism.request import LocateRequest, plan
from probe.mechanism.restoration import Paired
from probe.mechanism.results import summarize
from probe.mechanism.run import locate
from probe.status import status_of

M, LENGTH = 24, 96
HEADS = [(layer, head) for layer in range(3) for head in range(4)]


@cache
def tokenizer():
    """Any: prompts here are token ids."""
    return mesa.load().tokenizer


def bridged(model):
    return bridge_to(model, tokenizer())


def item(seed=0, length=LENGTH, scored=24):
    generator = np.random.default_rng(seed)
    return Item(tuple(generator.integers(2, 97, length).tolist()), scored)


METHODS = {BROKEN: mesa.Origin(trained_length=M), MENDED: mesa.ReRoPE(trained_length=M, window=9)}


def losses(contrast, intervention):
    return intervention.run(contrast).losses.mean().item()


def test_a_pass_begun_in_the_middle_is_the_whole_pass():
    bridge, one = bridged(planted()), item()
    with torch.no_grad():
        whole = run(bridge, one, METHODS[MENDED], keep=[("resid_pre", 2)])
        begun = run(bridge, one, METHODS[MENDED], start=Start(2, whole.kept["resid_pre", 2]))
        other = run(bridge, one, METHODS[MENDED], start=Start(2, whole.kept["resid_pre", 2].flip(0)))
    assert torch.equal(whole.losses, begun.losses)
    assert (whole.losses - other.losses).abs().max() > 1e-3
    assert len(bridge.original_model.model.layers) == 3


@torch.no_grad()
def test_the_planted_head_alone_restores_all_and_no_other_anything():
    model = planted()
    model.lm_head.weight *= 50
    bridge = bridged(model)
    contrasts = [Contrast(bridge, item(seed), METHODS) for seed in (3, 5, 6)]
    judge = Paired(*[[[each.outcome(of).losses.mean().item()] for each in contrasts] for of in (BROKEN, MENDED)])
    assert judge.gap.broken - judge.gap.mended > 0.1  # else nothing is planted
    for each in weaves(range(3), HEADS):
        found = judge.share([[losses(contrast, each)] for contrast in contrasts], restores=each.restores)
        holds = (each.layer, each.head) in (HEAD, (HEAD[0], None))
        assert found.value == pytest.approx(1.0 if holds else 0.0, abs=2e-3), each


@torch.no_grad()
@pytest.mark.parametrize("way", ["mend", "break"])
def test_patches_carry_what_the_planted_head_does(way):
    contrast = Contrast(bridged(planted()), item(), METHODS)
    ends = {of: contrast.outcome(of).losses.mean().item() for of in (BROKEN, MENDED)}
    before, after = ends[BROKEN if way == "mend" else MENDED], ends[MENDED if way == "mend" else BROKEN]
    for hook, layer, head, moved in (
        ("z", 1, 2, True),
        ("z", 1, 0, False),
        ("attn_out", 1, None, True),
        ("attn_out", 0, None, False),
        ("resid_post", 0, None, False),
        ("resid_pre", 2, None, True),
        ("resid_post", 2, None, True),
    ):
        found = losses(contrast, Intervention("patch", way, layer, head, hook))
        assert found == pytest.approx(after if moved else before, abs=1e-5), (hook, layer, head)
    beyond, inside = (
        losses(contrast, Intervention("patch", way, 1, None, "attn_out", span)) for span in ("beyond", "inside")
    )
    assert beyond == pytest.approx(after, abs=2e-2)
    assert inside == pytest.approx(before, abs=2e-2)
    last = Intervention("patch", way, 2, None, "resid_post", "last")
    assert losses(contrast, last) == pytest.approx(after, abs=1e-5)


def test_attribution_is_the_slope_of_patching():
    contrast = Contrast(bridged(planted([(2, 1)])), item(length=40, scored=8), METHODS)
    with torch.no_grad():
        found = attribute(contrast, ("z", "attn_out", "resid_post"))
        own, donor = (contrast.donor(of, ("z", 2))[:, 1] for of in (BROKEN, MENDED))
        step = 1e-2

        def nudge(states):
            states[:, 1] = own + step * (donor - own)
            return states

        plain = contrast.outcome(BROKEN).losses.double().mean()
        nudged = contrast.run(BROKEN, 2, [Edit(("z", 2), nudge)]).losses.double().mean()
    slope = float(plain - nudged) / step
    assert found[Intervention("patch", "mend", 2, 1, "z")] == pytest.approx(slope, rel=0.1)
    assert found[Intervention("patch", "mend", 2, 0, "z")] == pytest.approx(0, abs=1e-6)
    heads = sum(found[Intervention("patch", "mend", 2, head, "z")] for head in range(4))
    assert found[Intervention("patch", "mend", 2, None, "attn_out")] == pytest.approx(heads, rel=1e-3)


@torch.no_grad()
def test_clamped_dims_stay_where_they_are_put():
    bridge = bridged(planted())
    contrast = Contrast(bridge, item(), METHODS)
    own = contrast.donor(BROKEN, ("resid_post", 1))
    for way in ("at-M", "range"):
        clamp = Clamp(way, "drift", "observable", 1, ((1, (3, 7)),))
        seen = {}

        def look(base, layer, edits, seen=seen, contrast=contrast):
            start = Start(layer, contrast.outcome(base).kept["resid_pre", layer])
            seen["outcome"] = run(bridge, contrast.item, METHODS[BROKEN], edits, keep=[("resid_post", 1)], start=start)
            return seen["outcome"]

        clamp.run(_Watched(contrast, look))
        held = seen["outcome"].kept["resid_post", 1]
        assert torch.equal(held[:M], own[:M])
        free = [dim for dim in range(32) if dim not in (3, 7)]
        assert torch.equal(held[:, free], own[:, free])
        if way == "at-M":
            assert torch.equal(held[M:, [3, 7]], own[M - 1, [3, 7]].expand(LENGTH - M, 2))
        else:
            inner = own[M // 2 : M, [3, 7]]
            assert (held[M:, [3, 7]] <= inner.amax(0)).all()
            assert (held[M:, [3, 7]] >= inner.amin(0)).all()


class _Watched:
    def __init__(self, contrast, look):
        self.contrast, self.run = contrast, look

    def __getattr__(self, name):
        return getattr(self.contrast, name)


def test_stand_ins_are_other_dims_of_like_variance():
    variance = np.repeat([1e-4, 1.0, 100.0], 20)
    sets = stand_ins(variance, [0, 1, 25])
    assert sets.shape == (5, 3)
    for each in sets.tolist():
        assert len({*each}) == 3
        assert not {*each} & {0, 1, 25}
        assert variance[each].tolist() == [1e-4, 1e-4, 1.0]
    with pytest.raises(ValueError, match="31 of 60 dims leave too few"):
        stand_ins(variance, range(31))


def test_edits_that_are_not_made_are_errors():
    bridge = bridged(planted())
    with pytest.raises(ValueError, match="'resid_post' of layer 0 is not reached by a pass over layers 1-2"):
        run(
            bridge,
            item(),
            METHODS[BROKEN],
            [Edit(("resid_post", 0), lambda x: x)],
            start=Start(1, torch.zeros(LENGTH, 32)),
        )
    with pytest.raises(ValueError, match="'hook_q' of layer 0"):
        run(bridge, item(), METHODS[BROKEN], keep=[("hook_q", 0)])


def test_shares_are_paired():
    rng = np.random.default_rng(0)
    level = rng.normal(3, 2, (6, 4))  # prompts differ far more than what is lost
    broken, mended = level + 1, level
    judge = Paired(broken, mended)
    assert judge.gap.judged
    share = judge.share(level + 0.25 + rng.normal(0, 0.05, (6, 4)))
    assert share.value == pytest.approx(0.75, abs=0.05)
    assert share.high - share.low < 0.2
    assert judge.share(level + 0.25, restores=False).value == pytest.approx(0.25)
    same = Paired(level + rng.normal(0, 0.5, (6, 4)), level)
    assert not same.gap.judged
    assert np.isnan(same.share(level).low)


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with a planted model whose window is 160 tokens."""

    return lambda heads: headed.folder(tmp_path / "model", heads)


@pytest.fixture(scope="module")
def weightless(tmp_path_factory):
    """A folder of the same sizes whose weights cannot be read."""
    folder = tiny.folder(tmp_path_factory.mktemp("weightless") / "model")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def located(folder, out, *more):
    return main(["locate", "--model", str(folder), "--out", str(out), "--lengths", "320", "--samples", "4", *more])


def test_the_command_finds_the_planted_head(checkpoint, tmp_path, capsys):
    """From the command line to the summary, interrupted and gone on with."""
    folder, out = checkpoint([HEAD]), tmp_path / "run"
    every = ("--try", "weave,patch,clamp,attribution,smallest")
    assert located(folder, out, *every, "--minutes", "0.0001") == 0
    assert "cells are left; the same command goes on" in capsys.readouterr().err
    assert located(folder, out, *every, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((out / "locate" / "summary.json").read_text())
    assert summary["cells_left"] == 0
    alone = {
        (each["layer"], each["head"]): each["share"]
        for each in summary["effects"]
        if each["kind"] == "weave" and each["way"] == "only"
    }
    assert max(alone, key=alone.get) in (HEAD, (1, None))
    assert alone[HEAD] == pytest.approx(1, abs=1e-2)
    assert all(abs(share) < 1e-2 for place, share in alone.items() if place not in (HEAD, (1, None)))
    assert summary["smallest"][0]["heads"] == [list(HEAD)]
    assert summary["smallest"][0]["enough"] == 1
    (best,) = (each for each in summary["attribution"] if (each["hook"], each["layer"], each["head"]) == ("z", *HEAD))
    assert best["share"] == max(each["share"] for each in summary["attribution"] if each["hook"] == "z")
    rows = (out / "locate" / "cells.jsonl").read_text()
    assert located(folder, out, *every) == 0
    assert (out / "locate" / "cells.jsonl").read_text() == rows  # nothing is run again


EVERY = ("weave", "patch", "clamp", "attribution", "smallest")


@pytest.mark.slow
def test_whoever_runs_its_cells_a_run_is_the_same(checkpoint, tmp_path):
    some = {"layers": "1", "heads": "1", "hooks": ("attn_out", "z")}
    made = plan(LocateRequest(model=str(checkpoint([HEAD])), lengths=(320,), samples=4, kinds=EVERY, **some))
    for name, runner in {"local": LOCAL, "other": Elsewhere(seed=1)}.items():
        assert locate(made, tmp_path / name, runner=runner)[1] == []
    one, other = ((tmp_path / name / "locate" / "cells.jsonl").read_bytes() for name in ("local", "other"))
    assert one == other
    for kind in ("weave", "patch", "dims", "clamp", "attribution", "chosen"):
        assert f'"{kind}"'.encode() in one


def test_the_bar_counts_on_what_is_to_come_and_ends_full(checkpoint, tmp_path, monkeypatch):
    bars = []

    class Seen(tqdm):
        def __init__(self, **options):
            super().__init__(**options)
            bars.append(self)

    monkeypatch.setattr("probe.mechanism.run.tqdm", Seen)
    monkeypatch.setattr("probe.mechanism.run._mends", lambda spread, group, name: name == "rerope")
    some = {"methods": "rerope,mesa", "layers": "1", "heads": "none", "hooks": ("attn_out",)}
    kinds = ("weave", "attribution")
    made = plan(LocateRequest(model=str(checkpoint([HEAD])), lengths=(320,), samples=4, kinds=kinds, **some))
    assert locate(made, tmp_path / "run")[1] == []
    (bar,) = bars
    weaves, plain, slopes = 4 * 2 * 213, 3 * 4 * 320, 4 * 2 * 320
    assert bar.n == bar.total == pytest.approx(weaves + plain + slopes, abs=20)


def test_a_run_goes_on_with_what_another_runner_lost(checkpoint, tmp_path):
    asked = LocateRequest(model=str(checkpoint([HEAD])), lengths=(320,), samples=4, kinds=("weave",), heads="none")
    made, lost = plan(asked), ("nll", 320, "rerope", 1, "weave", "only", "", "all", 0, -1)
    journal, failed = locate(made, tmp_path / "run", runner=Elsewhere(seed=2, lost=(lost,)))
    assert [cell.key for cell in failed] == [lost]
    assert [each.layer for each in failed[0].inputs] == [0, 1, 2, 0, 1, 2]  # alone, and left out
    assert (*lost[:3], 2, *lost[4:]) in journal.rows
    assert summarize(made, journal)["cells_left"] == 6
    (told,) = status_of(tmp_path / "run").parts
    assert (told.failed, told.left, told.running) == (6, 0, 0)
    journal, failed = locate(made, tmp_path / "run")
    assert failed == []
    assert status_of(tmp_path / "run").parts[0].failed == 0
    assert summarize(made, journal)["cells_left"] == 0


def test_a_run_whose_plain_runs_are_lost_says_so_and_goes_on_with_the_others(checkpoint, tmp_path):
    asked = LocateRequest(model=str(checkpoint([HEAD])), lengths=(320,), samples=4, kinds=("smallest",), heads="1")
    made, lost = plan(asked), ("nll", 320, "rerope", 0, "run")
    journal, failed = locate(made, tmp_path / "run", runner=Elsewhere(lost=(lost,)))
    assert [cell.key for cell in failed] == [lost]
    assert len(journal.rows) == 2 * 4 - 1
    first = ("nll", 320, "rerope", 0, "set", "1:0")
    journal, failed = locate(made, tmp_path / "run", runner=Elsewhere(lost=(first,)))
    assert [cell.key for cell in failed] == [first]
    assert not any("chosen" in cell for cell in journal.rows)  # the next round follows from this one
    assert locate(made, tmp_path / "run")[1] == []
    lines = [json.loads(line) for line in (tmp_path / "run" / "locate" / "cells.jsonl").read_text().splitlines()]
    done, expected, unfinished = 0, 0, []
    for line in lines:  # wherever it is cut, it tells of more than it has
        done, expected = done + ("cell" in line), line.get("cells", expected)
        unfinished.append(done < expected)
    assert all(unfinished[:-1])


def test_nothing_to_mend_is_said(checkpoint, tmp_path, capsys):
    stale = tmp_path / "run" / "locate" / "summary.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    assert located(checkpoint([]), tmp_path / "run", "--overwrite") == 1
    assert not stale.exists()
    assert "no method is better than Origin beyond doubt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--lengths", "160"), "--lengths 160 is not beyond the trained length 160"),
        (("--try", "weave,patsch"), "--try 'patsch' is not known; known: weave, patch"),
        (("--hooks", "q"), "--hooks 'q' is not known"),
        (("--spans", "beyonds"), "--spans 'beyonds' is not known"),
        (("--measure", "ppl"), "--measure 'ppl' is not known; known: nll, passkey"),
        (("--methods", "origin"), "names nothing that mends Origin"),
        (("--set", "rerope.layers=(0,)"), "--set gives rerope its layers or heads"),
        (("--layers", "0-3"), "layer 0-3 is out of range"),
        (("--heads", "7"), "layer 7-7 is out of range"),
        (("--try", "smallest", "--samples", "1"), "--samples 1: the smallest set"),
        (("--minutes", "0"), "--minutes 0 is not above 0"),
        (("--prompt", " "), "--prompt ' ' is empty"),
        (("--try", "smallest", "--heads", "none"), "--try smallest has no heads to choose from"),
        (("--try", "weave", "--ways", "mend"), "--try weave has nothing to try with --ways mend"),
        (("--try", "patch", "--hooks", "z", "--heads", "none"), "and 0 heads; weaves go only, without"),
        (("--dims", "17"), "--dims 17 leaves too few of the 32 dims to choose as many others from; give at most 16"),
        (("--measure", "passkey", "--samples", "1"), "--samples 1: one answer has no interval, give at least 2"),
    ],
)
def test_bad_requests_are_refused_before_any_weights(weightless, tmp_path, capsys, more, message):
    assert located(weightless, tmp_path / "run", *more) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_estimate_needs_no_weights(weightless, tmp_path, capsys):
    assert located(weightless, tmp_path / "run", "--try", "weave", "--estimate") == 0
    shown = capsys.readouterr().out
    assert "3 layers, 12 heads, 1 methods, 4 prompts" in shown
    passes = (
        2 + 2 * (3 + 2 + 1) / 3 * 5
    )  # of both runs, and alone and without: each layer and its 4 heads from there on
    assert f"about {passes:,.0f} passes a prompt" in shown

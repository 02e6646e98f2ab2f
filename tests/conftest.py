"""Shared by all tests: property tests have no deadline, since a busy machine is no failure."""

import collections
import gc
import os
import sys

import pytest
from hypothesis import settings

# Workers take a thread each, also where the process that starts them has set more; a single process takes all cores,
# whatever else the machine does, since the number of threads changes how sums are rounded.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
else:
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
# Without bytecode each worker, and each command that a test starts, would compile torch and all that it imports: 4 to
# 16 s.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
os.environ["HF_HUB_OFFLINE"] = "1"  # without a network each question to the hub takes 20 s of retries
gc.disable()  # while modules are imported, which takes a tenth less then


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():  # which xdist's controller has as well, though it collects nothing
    gc.freeze()  # what is imported need not be looked through again
    gc.set_threshold(700, 10, 100)  # nor all else often: a look takes .15 s
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """Marks as slow what `quick_cases` leaves out. Here all cases exist, so --lf or single ids change no choice."""
    items = yield
    functions = items if isinstance(items, list) else []
    cases = [item for item in functions if isinstance(item, pytest.Function) and not item.get_closest_marker("slow")]
    mark = cases[0].get_closest_marker("quick_cases") if cases else None
    for item in set(cases) - set(spread(cases, *mark.args) if mark else cases):
        item.add_marker(pytest.mark.slow)
    return items


def spread(cases, count):
    """`count` of the cases, chosen so that each argument takes as many of its values as possible, equally often."""
    values = {item: [(name, repr(value)) for name, value in item.callspec.params.items()] for item in cases}
    left = sorted(cases, key=lambda item: cases.index(item) * 0.618 % 1)  # neighbours test similar things
    chosen, uses = [], collections.Counter()
    while left and len(chosen) < count:
        chosen.append(min(left, key=lambda item: sum(uses[value] for value in values[item])))
        left.remove(chosen[-1])
        uses.update(values[chosen[-1]])
    return chosen


settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture(scope="session", autouse=True)
def tokenized_once():
    """The shipped texts, which many plans read, are tokenized once by each tokenizer: it takes a second or two."""
    from transformers import PreTrainedTokenizerFast

    tokenize, known = PreTrainedTokenizerFast.__call__, {}

    def cached(self, text=None, *args, **options):
        if args or not isinstance(text, list) or sum(map(len, text)) < 100_000:
            return tokenize(self, text, *args, **options)
        key = self.backend_tokenizer.to_str(), *text, *options.items()
        if key not in known:
            known[key] = tokenize(self, text, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "__call__", cached)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The path of a tiny model's folder, M = 160."""
    import tiny

    return str(tiny.folder(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def undrawn():
    """Reports of runs are written without their folder of figures and their charts, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probe.figures.section.html_embed", lambda _: "<figure >")
        patch.setattr("probe.commands.probe.report.write_figures", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def unpainted():
    """Reports of runs are written with empty files for pictures, which matplotlib takes seconds for."""
    with pytest.MonkeyPatch.context() as patch:
        for command in ("probe.report", "predict.run"):
            patch.setattr(f"probe.commands.{command}.rendered", lambda *_: b"")
        yield

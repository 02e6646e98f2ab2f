"""Shared by all tests: property tests have no deadline, since a busy machine is no failure."""

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


@pytest.hookimpl(tryfirst=True)  # before slow tests are left out
def pytest_collection_modifyitems(items):
    cases = {}
    for item in items:
        if item.get_closest_marker("quick_cases") and not item.get_closest_marker("slow"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for of_test in cases.values():
        (quick,) = of_test[0].get_closest_marker("quick_cases").args
        for number, item in enumerate(of_test):
            if number * quick // len(of_test) == (number - 1) * quick // len(of_test):  # evenly spread
                item.add_marker(pytest.mark.slow)


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

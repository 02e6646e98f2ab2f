"""What is refused before a run because it does not fit in memory, and what is said of it."""

from types import SimpleNamespace

import pytest

from probe.capture import memory
from probe.commands.probe import ProbeRequest
from probe.commands.probe.plan import plan
from probe.commands.probe.run import check_fits, longest_that_fits
from probe.experiment.estimate import Speed
from probe.experiment.run import Experiment

FAST = Speed(0.0, 1e-9, 0.0, 256, (None,))


def free(monkeypatch, size):
    monkeypatch.setattr(memory, "free_bytes", lambda device="cpu": size)
    monkeypatch.setattr("mesa.device.free_bytes", lambda device="cpu": size)


@pytest.mark.parametrize("executor", ["fused", "dense"])
@pytest.mark.parametrize(("length", "longest"), [(512, 4096), (4096, 512)])
def test_the_option_of_the_longer_pass_is_named(monkeypatch, length, longest, executor):
    planned = plan(ProbeRequest(methods="origin", length=length, lengths=(256, longest), texts=0, executor=executor))
    free(monkeypatch, 0)
    named = f"--lengths {longest}" if longest > length else f"--length {length}"
    with pytest.raises(MemoryError, match=rf"{named} needs .*; shorten {named.split()[0]} or keep fewer"):
        check_fits(planned)


@pytest.mark.parametrize(("device_map", "longest"), [(None, 320), ("auto", 2048)])
def test_a_device_map_places_what_this_machine_cannot_hold(monkeypatch, device_map, longest):
    planned = plan(ProbeRequest(methods="origin", load={"device_map": device_map}))
    free(monkeypatch, 0)
    assert longest_that_fits(planned, FAST, 1.0, 0.0) == longest
    experiment = Experiment()
    experiment.plan, experiment.remedy = planned, "shorten --lengths"
    experiment.tasks = lambda rows: [SimpleNamespace(memory_bytes=2**30)]
    if device_map:
        experiment.check_memory()
    else:
        with pytest.raises(MemoryError, match="shorten --lengths"):
            experiment.check_memory()

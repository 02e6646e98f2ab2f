"""No worker is promised memory that its machine lacks; the largest task has a place where any machine holds it."""

import pytest

from mesa.models import config_of
from probe.commands.anatomy import AnatomyRequest, run as anatomy
from probe.commands.locate import LocateRequest, run as locate
from probe.commands.predict import PredictRequest, run as predict
from probe.commands.probe import ProbeRequest, plan as probe
from probe.commands.readout import ReadoutRequest, run as readout
from probe.evaluation import Evaluation, plan_evaluation
from probe.experiment.pool import Task
from probe.experiment.ray import Resources, worker_memory
from probe.request import EvalRequest

SMALL, LARGE = Task("a", (1,), memory_bytes=10, best_bytes=40), Task("a", (2,), memory_bytes=100)
machine, TAKES = Resources, Resources(1, 0, 50)


@pytest.mark.parametrize(
    ("nodes", "workers", "tasks", "expected"),
    [
        (
            [machine(8, 0, 400)],
            4,
            [SMALL],
            [40] * 4,
        ),  # 100 each, of which 50 are weights; no task runs better with more
        ([machine(8, 0, 250)], 4, [SMALL], [12] * 4),
        ([machine(8, 0, 190)], 4, [SMALL], [13] * 3),  # memory for three
        ([machine(2, 0, 4000)], 4, [SMALL], [40] * 2),  # CPUs for two
        ([machine(8, 0, 300)], 3, [SMALL, LARGE], [100, 100]),
        ([machine(8, 0, 140)], 2, [SMALL, LARGE], [90]),  # the large task fits nowhere
        ([machine(4, 0, 150), machine(16, 0, 620)], 6, [SMALL, LARGE], [100] * 5),  # 150 - 50, 4 x (620/4 - 50 = 105)
    ],
)
def test_memory_is_shared_among_workers(nodes, workers, tasks, expected):
    assert worker_memory(nodes, TAKES, workers, tasks) == (len(expected), expected[0])


@pytest.mark.parametrize(
    ("node", "gpus", "expected"),
    [(machine(8, 3, 4000), 2, 1), (machine(8, 1, 4000), 0.5, 2), (machine(8, 1, 4000), 0.2, 5)],
)
def test_gpus_limit_the_workers(node, gpus, expected):
    assert worker_memory([node], TAKES._replace(gpus=gpus), 9, [SMALL])[0] == expected


def test_an_error_names_what_no_machine_has():
    gib = 2**30
    with pytest.raises(MemoryError, match=r"about 3\.0 GiB .* have .*, 1\.0 GiB; .*, 2\.0 GiB; shorten --lengths"):
        worker_memory([machine(8, 0, gib), machine(8, 0, 2 * gib)], machine(1, 0, 2 * gib), 2, [Task("a", (1,), gib)])
    with pytest.raises(MemoryError, match=r"takes 1 CPUs, 2 GPUs, .* the machines have 8 CPUs, 1 GPUs"):
        worker_memory([machine(8, 1, gib)], machine(1, 2, 0), 2, [SMALL])


PLANS = {
    "eval": (EvalRequest, plan_evaluation, lambda plan: Evaluation(plan).tasks({}), {"tasks": ("nll",)}),
    "probe": (ProbeRequest, probe.plan, probe.pass_tasks, {"lengths": (256, 512), "length": 512}),
    "predict": (PredictRequest, predict.plan, lambda plan: predict.Predict(plan).tasks({}), {}),
    "locate": (LocateRequest, locate.plan, lambda plan: locate.Locate(plan).tasks({}), {}),
    "anatomy": (AnatomyRequest, anatomy.plan, lambda plan: anatomy.AnatomyExperiment(plan).tasks({}), {}),
    "readout": (ReadoutRequest, readout.plan, lambda plan: readout.ReadoutExperiment(plan).tasks({}), {}),
}


@pytest.mark.parametrize("command", PLANS)
def test_dense_scores_count_as_memory(command):
    requested, plan, tasks, options = PLANS[command]
    fused, dense = (
        max(task.memory_bytes for task in tasks(plan(requested(**{"lengths": (512,), "executor": executor} | options))))
        for executor in ("fused", "dense")
    )
    assert dense - fused == 3 * 4 * config_of("default").num_attention_heads * 512**2

"""Results as `mesa-lens eval` leaves them, made up or published; each returns its folder."""

from probe.evaluation.plan import TASKS
from probe.evaluation.summary import summarize
from probe.files import write_result

LOST = 0.8  # of accuracy, by Origin at 512 tokens


def evaluation(model="tiny", tasks_left=0):
    """A summary in which rerope finds all passkeys at 512 tokens, Origin a fifth; both all at 256."""
    rows = [
        {"task": "passkey", "metric": "accuracy", "method": method, "length": length, "sample": sample, "score": score}
        for method in ("origin", "rerope")
        for length in (256, 512)
        for sample in range(20)
        for score in [float(method == "rerope" or length == 256 or sample >= LOST * 20)]
    ]
    cells = summarize(rows, TASKS)
    return {"model": model, "trained_length": 256, "out_of_memory": [], "tasks_left": tasks_left, "cells": cells}


def write_evaluation(folder, **changes):
    folder.mkdir(parents=True)
    write_result(folder / "summary.json", evaluation(**changes))
    (folder / "samples.csv").write_text("task,method\n")
    return folder

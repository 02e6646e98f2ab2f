"""`mesa-lens check`: tests whether the methods are computed correctly on your checkpoint, or estimates its M."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from mesa.errors import Refused
from mesa.settings import check_names
from mesa_lens.arguments import JsonOptions, MinutesOptions, ThreadOptions
from probe.options import MAX_COUNT, MAX_TOKENS, Integer, JoinedNames, TextName, option, options
from probe.request import ModelOptions

if TYPE_CHECKING:
    from probe.thresholds.window_estimate import WindowEstimate

_WINDOW = "with --estimate-window"
_TIMES = 4  # of the stated M: the longest context, by default
_TAIL = 32  # tokens that are scored


@dataclass(frozen=True)
class CheckRequest(ModelOptions):
    """What is checked."""

    methods: JoinedNames = option(
        "all", "names separated by commas; all leaves out those that do not work on this model"
    )
    pretended: Annotated[Integer, Field(ge=24, le=4096)] = option(
        64, "the tests set up methods as if M were this many tokens, so that short prompts are enough"
    )
    estimate_window: bool = option(
        False,
        "estimate M instead: the longest context that makes the model no worse; a config can be wrong",
    )
    longest: Annotated[Integer, Field(ge=128, le=MAX_TOKENS)] | None = option(
        None, "the longest context in tokens", group=_WINDOW, unset=f"{_TIMES} times the stated M"
    )
    samples: Annotated[Integer, Field(ge=2, le=MAX_COUNT)] = option(20, "texts at each length", group=_WINDOW)
    text: TextName | None = option(
        None, "text to score: a file, folder or hub dataset", group=_WINDOW, unset="the shipped one"
    )

    def check_names(self) -> None:
        """Also for methods that are not known."""
        check_names(self.methods)
        super().check_names()


HELP = "test whether the methods are computed correctly on your checkpoint"
EXAMPLE = "mesa-lens check --model default"


def run(request: CheckRequest, time_limit: MinutesOptions, printing: JsonOptions, cpu: ThreadOptions) -> int:
    """Prints the table, or the estimate of M; 1 where a row of the table failed."""
    from probe.experiment.pool import check_threads, computing

    check_threads(cpu.threads)
    _check_read(request, time_limit)
    if request.estimate_window:
        return _estimate(request, printing, cpu)
    from mesa.models import load
    from mesa.settings import make_methods
    from mesa.support import stated_text
    from probe.capture.memory import check_weights

    make_methods(request.methods, request.pretended)
    config = request.checked_config()
    positions = stated_text(config, request.trained_length)
    request.checked_model()
    check_weights(config, request.load)
    loaded = load(request.model, **request.load)
    from mesa.checking.check import check

    if not printing.json:  # the tests take minutes
        print(f"{request.model}: {positions}\n", flush=True)
    with computing(cpu.threads):
        report = check(
            loaded.model,
            loaded.tokenizer,
            methods=request.methods,
            trained_length=request.trained_length,
            pretended=request.pretended,
            minutes=time_limit.minutes,
            name=request.model,
        )
    record = {**report.record(), "positions": positions}
    print(json.dumps(record, indent=1) if printing.json else report)
    return int(bool(report.failed))


def _check_read(request: CheckRequest, time_limit: MinutesOptions) -> None:
    """Raises Refused for an option that is not read: some are only of the estimate, others only of the tests."""
    unread = {"methods", "pretended"} if request.estimate_window else {"longest", "samples", "text"}
    changed = [item.flag for item in options(CheckRequest) if item.key in unread and item.of(request) != item.default]
    if request.estimate_window and time_limit.minutes is not None:
        changed.append("--minutes")
    if changed:
        where = "next to" if request.estimate_window else "without"
        raise Refused(f"{changed[0]} has no effect {where} --estimate-window")


def _estimate(request: CheckRequest, printing: JsonOptions, cpu: ThreadOptions) -> int:
    """Prints the estimate of M, whatever it is."""
    from mesa.models import bytes_a_number, tokenizer_of
    from mesa.support import stated_text, trained_length
    from probe.capture.memory import check_beside, check_prompts, prompt_bytes
    from probe.eval_tasks import score
    from probe.experiment.pool import computing
    from probe.thresholds.window_estimate import SHORTEST

    config, longest = request.checked_config(), request.longest
    if longest and request.trained_length:
        raise Refused(f"--trained-length {request.trained_length} with --longest: it only sets the longest context")
    if not printing.json and longest is None:
        print(f"{request.model}: {stated_text(config, request.trained_length)}\n")
    if longest is None:
        longest = max(2 * SHORTEST, _TIMES * (request.trained_length or trained_length(config)))
    check_prompts(longest, request.samples, "--longest")
    needed = prompt_bytes(config, longest, bytes_a_number(config, request.load))
    check_beside(needed, config, request.load, "give a shorter --longest")
    tokenizer: Any = tokenizer_of(request.model, **request.source)
    documents, text_source = score.documents_of(tokenizer, request.text)
    windows = score.text_windows(documents, longest, request.samples, _TAIL)
    if len(windows) < 2:
        raise Refused(f"--longest {longest}: the text has {len(windows)} run of so many tokens, 2 are needed")
    with computing(cpu.threads):
        estimate = _measured(request, config, longest, windows)
    record = {**estimate.record(), "text_source": asdict(text_source)}
    print(json.dumps(record, indent=1) if printing.json else f"{estimate}\n\n{estimate.table()}")
    return 0


def _measured(request: CheckRequest, config: Any, longest: int, windows: Any) -> WindowEstimate:
    import numpy as np

    from mesa.models import load
    from mesa.progress import Bar
    from probe.eval_tasks.retrieval import first_ids
    from probe.eval_tasks.score import nll
    from probe.eval_tasks.tasks import tail_prompts
    from probe.thresholds.failure import CHANCE_NATS
    from probe.thresholds.window_estimate import estimate_window

    with Bar(desc="measuring NLL", unit="text") as bar:
        loaded = load(request.model, **request.load)
        first = first_ids(loaded.tokenizer)

        def measure(length: int) -> np.ndarray:
            bar.set_postfix_str(f"{length} tokens")
            values = []
            for ids in tail_prompts(windows, first, length):
                values.append(float(nll(loaded.model, ids, _TAIL, reduction="mean")))
                bar.update()
            if not np.isfinite(values).all():
                raise Refused(f"the NLL at {length} tokens is not a number; run the model with --dtype float32")
            return np.array(values)

        return estimate_window(measure, longest, math.log(config.vocab_size) - CHANCE_NATS)

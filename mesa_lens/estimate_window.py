"""`mesa-lens estimate-window`: the trained length M, from the model itself: configs can be wrong about it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from mesa.errors import Refused
from mesa_lens.arguments import JsonOptions, ThreadOptions
from probe.options import MAX_COUNT, MAX_TOKENS, TextName, Whole, option
from probe.request import ModelOptions

if TYPE_CHECKING:
    from probe.thresholds.window_estimate import WindowEstimate

_TIMES = 4  # of the stated M: the longest context, by default
_TAIL = 32  # tokens that are scored


@dataclass(frozen=True)
class WindowRequest(ModelOptions):
    """What is measured."""

    longest: Annotated[Whole, Field(ge=128, le=MAX_TOKENS)] | None = option(
        None, "the longest context in tokens", unset=f"{_TIMES} times the stated M"
    )
    samples: Annotated[Whole, Field(ge=2, le=MAX_COUNT)] = option(20, "texts at each length")
    text: TextName | None = option(None, "text to score: a file, folder or hub dataset", unset="the shipped one")


HELP = "estimate the trained length M: the longest context that does not make the model worse"
EXAMPLE = "mesa-lens estimate-window --model default"


def run(request: WindowRequest, printing: JsonOptions, cpu: ThreadOptions) -> int:
    """Prints the estimate, whatever it is."""
    from mesa.models import bytes_a_number, tokenizer_of
    from mesa.support import trained_length
    from probe.capture.memory import check_beside, check_prompts, prompt_bytes
    from probe.eval_tasks import score
    from probe.experiment.pool import check_threads, computing
    from probe.thresholds.window_estimate import SHORTEST

    check_threads(cpu.threads)
    config = request.checked_config()
    longest = request.longest
    if longest and request.trained_length:
        raise Refused(f"--trained-length {request.trained_length} with --longest: it only sets the longest context")
    if longest is None:
        longest = max(2 * SHORTEST, _TIMES * (request.trained_length or trained_length(config)))
    check_prompts(longest, request.samples, "--longest")
    needed = prompt_bytes(config, longest, bytes_a_number(config, request.load))
    check_beside(needed, request.load, "give a shorter --longest")
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


def _measured(request: WindowRequest, config: Any, longest: int, windows: Any) -> WindowEstimate:
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

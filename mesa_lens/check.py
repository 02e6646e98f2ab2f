"""`mesa-lens check`: tests whether the methods are computed correctly on your checkpoint; one row for each test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mesa.settings import check_names
from mesa_lens.arguments import JsonOptions, MinutesOptions, ThreadOptions
from probe.options import JoinedNames, Whole, option
from probe.request import ModelOptions


@dataclass(frozen=True)
class CheckRequest(ModelOptions):
    """What is checked."""

    methods: JoinedNames = option(
        "all", "names separated by commas; all leaves out those that do not work on this model"
    )
    pretended: Annotated[Whole, Field(ge=24, le=4096)] = option(
        64, "the tests set up methods as if M were this many tokens, so that short prompts are enough"
    )

    def check_names(self) -> None:
        """Also for methods that are not known."""
        check_names(self.methods)
        super().check_names()


HELP = "test whether the methods are computed correctly on your checkpoint"
EXAMPLE = "mesa-lens check --model default"


def run(request: CheckRequest, time_limit: MinutesOptions, printing: JsonOptions, cpu: ThreadOptions) -> int:
    """Prints the table; 1 where a row failed."""
    from mesa.models import load
    from mesa.settings import make_methods
    from probe.experiment.pool import check_threads, computing

    check_threads(cpu.threads)
    make_methods(request.methods, request.pretended)
    request.checked_model()
    loaded = load(request.model, **request.load)
    from mesa.checking.check import check

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
    print(json.dumps(report.record(), indent=1) if printing.json else report)
    return int(bool(report.failed))

"""`mesa-lens predict`: every method's failure, predicted from one measured curve and the distances of its plan.

In: losses of Origin, of a method that holds, and under gaps. Out: excess loss by length and failure length of any plan.
Open first: formula.py; then run.py and result.py. Why: docs/law.md."""

from dataclasses import dataclass
from typing import ClassVar

from probe.commands import Command
from probe.options import Count, Lengths, TextName, option
from probe.request import LENGTHS_HELP, STORED, TEXT_HELP, ConfigsRequest
from probe.run_folder import Layout


@dataclass(frozen=True)
class PredictRequest(ConfigsRequest):
    """What `predict_failure` predicts: a model, methods and lengths in tokens.

    Its fields are the options of `mesa-lens predict`; docs/commands.md lists them with their defaults
    (`method_settings` is --set, `configs` --config).

    Examples:
        >>> request = probe.PredictRequest(methods="rerope", configs=("leaky-rerope:k=2",), samples=3)
        >>> request.methods, request.samples
        ('rerope', 3)
    """

    lengths: Lengths | None = option(None, LENGTHS_HELP, unset="1.25, 1.5, 2, 3, 4, 6, 8x M")
    samples: Count = option(16, "texts; every measurement uses the same ones")
    text: TextName | None = option(None, f"text to score: {TEXT_HELP}", unset="the shipped one")
    check: bool = option(False, "measure every method as well, and compare with the prediction")
    not_compared: ClassVar[tuple[str, ...]] = (*STORED, "configs", "check")


COMMAND = Command(
    name="predict",
    help="predict at which length each method fails, from the unmodified model's loss",
    about="predicts the length at which each method fails, from one curve and the method's distances",
    example="--config leaky-rerope:k=2,log_n=false --check --out runs/predict",
    options=(PredictRequest,),
    layout=Layout("predict", ("journal.jsonl",), ("prediction.json",)),
    package=__name__,
    tells=("findings", "in_notebook", "predicted"),
)

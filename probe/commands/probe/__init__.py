"""`mesa-lens probe`: at which length the model fails under each method, and its hidden states.

In: a request (model, methods, lengths, what to keep). Out: a store, summary.json with the verdict, a report.
Open first: run.py, the full path; verdict.py, the answer in rows and sentences; report.py, the page."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from probe.capture.spec import CaptureSpec
from probe.commands import Command
from probe.options import CountOrZero, Lengths, Text, TextName, Tokens, option, options_in
from probe.request import LENGTHS_HELP, METHODS, ConfigsRequest
from probe.run_folder import PROBE


@dataclass(frozen=True)
class ProbeRequest(ConfigsRequest):
    """What `run_probe` measures: a model, methods, prompts and lengths in tokens.

    Its fields are the options of `mesa-lens probe`; docs/commands.md lists them with their defaults
    (`method_settings` is --set, `configs` --config).

    Examples:
        >>> request = probe.ProbeRequest(methods="origin,rerope", method_settings=("rerope.window=64",))
        >>> request.model, request.word, request.samples
        ('default', 'hello', 20)
    """

    default_methods: ClassVar[str] = METHODS
    not_compared: ClassVar[tuple[str, ...]] = ("methods", "method_settings", "configs", "texts")
    length: Tokens | None = option(None, "tokens of the prompts whose hidden states are stored", unset="4x M")
    word: Text = option("hello", "the word that the main prompt repeats", key="prompt")
    text: TextName | None = option(
        None,
        "text to take text prompts from, and for NLL: a file, folder or hub dataset",
        unset="the shipped text",
        only=lambda request: request.texts != 0 or request.samples,
        only_text="with --texts or --samples above 0",
    )
    texts: CountOrZero | None = option(
        None, "text prompts to store as well as the repeated word", unset="2, or 0 in stages"
    )
    spec: CaptureSpec = options_in(CaptureSpec, build=CaptureSpec, default=CaptureSpec)
    samples: CountOrZero = option(
        20, "texts, and passkey prompts, at each length; 0 skips this measurement", group="measured failure"
    )
    lengths: Lengths | None = option(
        None,
        LENGTHS_HELP,
        group="measured failure",
        unset="0.5, 1, 1.5, 2, 3, 4, 6, 8x M, up to --length, or that; where a prompt fits",
        only=lambda request: request.samples,
        only_text="with --samples above 0",
    )
    refine: CountOrZero | None = option(
        None,
        "narrow the failure length of each method that fails by N further lengths, halving the interval each time",
        group="measured failure",
        metavar="N",
        unset="1 where a forward pass takes at most 100 GFLOP, as on the shipped model, else 0",
    )


@dataclass(frozen=True)
class RuleOptions:
    """What onsets are read by."""

    rule: Literal["drift", "paper"] = option(
        "drift", "read onsets from drift of layers, or from thresholds of single dims as in the paper"
    )


COMMAND = Command(
    name="probe",
    help="measure at which length each method fails, and store hidden states",
    about="measures at which length the model fails under each method, and stores its hidden states",
    example="--length 2048 --out runs/demo",
    options=(ProbeRequest, RuleOptions),
    layout=PROBE,
    package=__name__,
    timed=False,
)

"""The paper's experiments: which figure or table each is, which tasks it runs, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from probe.options import InputPath, JoinedNames, Names, Tokens, option
from probe.request import EvalRequest, ProbeRequest


@dataclass(frozen=True)
class HarnessSection:
    """The options of a section that lm-eval runs."""

    tasks: Names | None = option(None, "of lm-eval")
    limit: Tokens | None = option(None, "documents a task", unset="all")
    methods: JoinedNames | None = option(None, "names")
    max_length: Tokens | None = option(None, "longest prompt in tokens", unset="8 M")
    include_path: InputPath | None = option(None, "folder with further task definitions")


@dataclass(frozen=True)
class Section:
    """One experiment.

    tasks: of `mesa-lens eval`, of which a config may name some; none: `probe` or lm-eval. options: what it may set.
    methods: in place of the config's. printed: the tables in printed.json that the paper has of it.
    """

    name: str
    place: str
    title: str
    paper: str
    tasks: tuple[str, ...] = ()
    options: type = EvalRequest
    methods: str = ""
    printed: tuple[str, ...] = ()


SECTIONS = {
    section.name: section
    for section in (
        Section(
            "probe",
            "Figures 2 and 11 to 16",
            "Thresholds in hidden states",
            "Under Origin, values at some dims pass the value they have at M, just beyond M; under ReRoPE and Mesa "
            "they do not, and under Dynamic-NTK later. Chosen and read by eye, in two models.",
            options=ProbeRequest,
        ),
        Section(
            "passkey",
            "Figure 3",
            "Passkey retrieval",
            "ReRoPE, Leaky-ReRoPE and Mesa keep finding the passkey beyond M; Origin does not; Dynamic-NTK does for a "
            "while; LM-Infinite and StreamingLLM drop what they would need.",
            tasks=("passkey",),
        ),
        Section(
            "nll",
            "Figures 4 and 6",
            "Language modelling",
            "Origin's NLL rises beyond M; the others' stays low, Dynamic-NTK's rises slightly.",
            tasks=("nll",),
        ),
        Section(
            "nll-position",
            "Beside Figures 4 and 6",
            "Language modelling by position",
            "NLL is given by length alone. Here is one pass over the longest length, by where in it a token stands; "
            "chunked methods weave the last chunk alone, so tokens in their early buckets see their own chunk and the "
            "first.",
            tasks=("nll-position",),
        ),
        Section(
            "summary",
            "Tables 1 and 2",
            "Summaries of GovReport",
            "LLaMA2-7B-Chat, 8 samples a length: Origin and StreamingLLM give nothing beyond M; Dynamic-NTK is best up "
            "to 11k, the woven methods are close.",
            tasks=("summary",),
            printed=("rouge", "bleu"),
        ),
        Section(
            "latency",
            "Figure 5",
            "Memory and latency",
            "Origin and Dynamic-NTK grow quadratically, ReRoPE and Leaky-ReRoPE need most, Mesa grows linearly and "
            "needs least. (The paper runs the public implementations, with full score matrices.)",
            tasks=("latency",),
        ),
        Section(
            "longeval",
            "Figure 7",
            "LongEval lines",
            "Origin and StreamingLLM fail beyond M; the woven methods hold, less the longer.",
            tasks=("lines",),
        ),
        Section(
            "longbench",
            "Table 3",
            "LongBench",
            "LLaMA2-7B-Chat: Mesa is best on most tasks, Dynamic-NTK on code.",
            options=HarnessSection,
            printed=("longbench",),
        ),
        Section(
            "enhanced",
            "Figure 8",
            "Enhanced prompts",
            "Under Mesa, stating the goal before or after the sample raises accuracy.",
            tasks=("passkey", "passkey-question", "passkey-answer"),
            methods="mesa",
        ),
        Section(
            "ablation",
            "Figure 9",
            "Weave schemes on the chunked matrix",
            "On the same chunked triangular attention, Stair PE is compared with ReRoPE and Leaky-ReRoPE on the last "
            "chunk.",
            tasks=("passkey", "nll"),
            methods="mesa",
        ),
        Section(
            "niah",
            "Figure 10",
            "Needle in a haystack",
            "Phi-3-mini-128k: Mesa keeps finding the needle beyond 128k, Origin does not.",
            tasks=("niah-repeat", "niah-essay", "niah-noise"),
        ),
        Section(
            "ruler",
            "Beside Figure 10",
            "RULER's other tasks and the effective length",
            "A single needle is all that is sought. Here are several, variables to track and words to count, and from "
            "them how long prompts may get.",
            tasks=("niah-multikey-2", "niah-multikey-3", "niah-multivalue", "niah-multiquery", "vt", "cwe", "fwe"),
        ),
        Section(
            "longppl",
            "Beside Figures 4 and 6",
            "LongPPL",
            "NLL is of all tokens. Here it is of those alone that need what stands further back, as ReRoPE chose them, "
            "which is not judged; a baseline that reads the last M tokens alone (crop) does badly by it.",
            tasks=("longppl",),
        ),
    )
}
"""By name, in the report's order."""

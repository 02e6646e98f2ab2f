"""The paper's experiments: which figure or table each is, which tasks it runs, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from probe.commands.probe import ProbeRequest
from probe.options import InputPath, JoinedNames, Names, Text, Tokens, option
from probe.request import EvalRequest


@dataclass(frozen=True)
class PaperOptions:
    """Which experiments are run."""

    config: Text = option("default", "a YAML file, or the name of one of research/paper/configs/")
    sections: Names | None = option(None, "only these, separated by commas", unset="all of the config")


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

    @property
    def by_lm_eval(self) -> bool:
        """Whether its tasks are lm-eval's."""
        return self.options is HarnessSection


_OPTIONS = {"probe": ProbeRequest, "summary": HarnessSection, "longbench": HarnessSection}
_TEXTS = yaml.safe_load(Path(__file__).with_name("sections.yaml").read_text(encoding="utf-8"))
SECTIONS = {
    name: Section(
        name,
        options=_OPTIONS.get(name, EvalRequest),
        **texts | {key: tuple(texts[key]) for key in ("tasks", "printed") if key in texts},
    )
    for name, texts in _TEXTS.items()
}
"""By name, in the report's order; their texts are in sections.yaml."""

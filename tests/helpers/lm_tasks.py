"""Two local tasks of lm-eval, of three documents each: a choice, and a free answer."""

import json
from pathlib import Path

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
doc_to_text: "{{{{text}}}}"
output_type: {kind}
"""
CHOICE = """
doc_to_target: label
doc_to_choice: [" green", " blue"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
FREE = """
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 4, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
ROWS = (
    {"text": "The grass is green. " * 60 + "The grass is", "label": 0, "answer": "green"},
    {"text": "The sky is", "label": 1, "answer": "blue"},
    {"text": "The sky, on a day without clouds, is", "label": 1, "answer": "blue"},
)


def write_tasks(folder: Path) -> None:
    """The tasks `choose` and `say`, and their data."""
    folder.mkdir()
    data = folder / "data.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    for name, kind, rest in (("choose", "multiple_choice", CHOICE), ("say", "generate_until", FREE)):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind) + rest)

"""`mesa-lens status`: how far a run is, whoever runs it: done, failed, left; needs no model and writes nothing."""

import json
from dataclasses import dataclass

from mesa_lens.arguments import JsonOptions
from probe.options import REQUIRED, InputPath, option


@dataclass(frozen=True)
class StatusOptions:
    """A run that a command writes."""

    run_folder: InputPath = option(
        REQUIRED, "the folder that a command writes to (its --out)", positional=True, metavar="RUN"
    )


HELP = "show how far a run is: tasks done, failed, left"
EXAMPLE = "mesa-lens status runs/demo"


def run(options: StatusOptions, printing: JsonOptions) -> int:
    """Reads journals, stores and locks; a damaged line makes it 1."""
    from probe.status import status_of

    status = status_of(options.run_folder)
    going_on = "".join(f"\n  to go on: {line}" for line in status.resume.values())
    print(json.dumps(status.as_dict(), indent=1) if printing.json else f"{status.text()}{going_on}")
    return int(any(part.damaged for part in status.parts))

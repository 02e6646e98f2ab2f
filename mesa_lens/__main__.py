"""`mesa-lens`, also as `python -m mesa_lens`: an interrupt is one line from the first import on."""

import sys

from mesa_lens.namesakes import PACKAGES, check


def main() -> int:
    """Runs the command; its exit code."""
    try:
        check(*PACKAGES)
    except ImportError as error:
        print(f"mesa-lens: {error}", file=sys.stderr)
        return 2
    try:
        from probe.experiment.lock import interruptible

        with interruptible():
            from mesa_lens.cli import main as command
    except KeyboardInterrupt:
        print("\nmesa-lens: interrupted; nothing half-written was left", file=sys.stderr)
        return 1
    return command()


if __name__ == "__main__":
    sys.exit(main())

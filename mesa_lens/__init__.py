"""The command `mesa-lens`: thin over mesa, probe and theory.

In: a command line. Out: what the packages return, printed or written, and an exit code.
Open first: cli.py; every subcommand is a file, named after it.
"""

__version__ = "0.2.0"

"""The command `mesa-lens`: thin over mesa, probe and theory."""

__version__ = "0.1.0"

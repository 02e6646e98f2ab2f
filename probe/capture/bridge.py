"""`mesa.bridge` under the name that probe gives it."""

from mesa.engine.bridge import bridge as bridge_to

__all__ = ["bridge_to"]

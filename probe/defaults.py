"""What a probe does unless told otherwise, for those who must not load torch to say it."""

METHODS = "origin,rerope,dynamic-ntk,mesa"
"""The methods compared."""

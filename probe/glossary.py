"""Definitions of three terms, shared by the report, the dashboard and docs/index.md."""

WEAVE = (
    "To weave is to give attention another distance between two tokens than the true one, so that none exceeds "
    "the distances that the model was trained on."
)
DIM = "A dim is one coordinate of the hidden state after a layer."
THRESHOLD_DIM = (
    "A dim of a layer is a threshold dim if its value stays on one side of its value at M inside the window, and moves "
    "clearly and lastingly to the other side beyond M; the value at M is its threshold."
)

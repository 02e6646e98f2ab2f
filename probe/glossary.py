"""What the three words mean that a reader meets first here: in the report, the dashboard and docs/index.md alike."""

WEAVE = (
    "To weave is to tell attention another distance between two tokens than the true one, so that none lies beyond "
    "the distances that the model was trained on."
)
DIM = "A dim is one coordinate of the hidden state after a layer."
OBSERVABLE = (
    "A dim of a layer is observable where its value, on one side of the value at M inside the window, goes over to the "
    "other beyond M, clearly and to stay; the value at M is its threshold."
)

"""Whether the methods are computed correctly on a checkpoint: rows that passed, failed or were not run, with numbers.

In: a model and its tokenizer. Out: a report. Open first: check.py, the checks of the model, then those of
a method, then their order; oracle.py computes attention pair by pair.
"""

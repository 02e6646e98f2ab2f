"""Whether the methods are computed correctly on a checkpoint: rows that passed, failed or were not run, with numbers.

In: a model and its tokenizer. Out: a report. Open first: check.py; checks.py has the checks of the
model, then those of a method; oracle.py computes attention pair by pair.
"""

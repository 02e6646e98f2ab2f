"""Whether the methods are computed correctly on a checkpoint: rows that passed, failed or were not run, with numbers.

In: a model and its tokenizer. Out: a report. Open first: check.py; model_checks.py has the checks of the model,
method_checks.py those of a method; oracle.py computes attention pair by pair.
"""

"""Whether the methods work on one's own checkpoint: rows that passed, failed or were not run, each with its numbers.

In: a model and its tokenizer. Out: a report. Open first: check.py; methods.py tries a method, own.py the model as it
is, around.py what is around it (tokenizer, window, bridge); oracle.py computes attention pair by pair, rounding.py
says what differences the dtype makes.
"""

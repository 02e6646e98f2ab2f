"""Runs tasks over methods and lengths, resumably, and sums them up.

In: an `EvalRequest`. Out: scores a sample, in a journal, and means with intervals in summary.json.
Open first: plan.py (the request and its cells), then run.py; harness.py runs lm-eval's tasks.
"""

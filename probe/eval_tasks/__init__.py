"""Evaluation tasks: retrieval prompts, likelihood, latency.

In: a loaded model or its tokenizer, a length, a seed. Out: prompts of exactly that length, and scores a sample.
Open first: base.py (what a task is), then tasks.py; retrieval.py builds prompts, score.py measures.
"""

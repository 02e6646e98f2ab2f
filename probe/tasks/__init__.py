"""Retrieval prompts, and likelihood by length, to measure where a model really fails."""

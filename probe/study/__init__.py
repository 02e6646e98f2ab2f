"""Do thresholds predict failure? One model, many methods, prompts and seeds.

In: a `StudyRequest`. Out: failure lengths predicted and measured, how well they agree, and a report.
Open first: run.py, then cells.py (what one cell does); score.py and table.py judge.
"""

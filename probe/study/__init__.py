"""Do thresholds predict failure? One model, many methods, prompts and seeds.

In: a `StudyRequest`. Out: failure lengths predicted and measured, how well they agree, and a report.
Open first: plan.py (what is asked for), run.py, cells.py (what one cell does); score.py and table.py judge.
"""

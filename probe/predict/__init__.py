"""`mesa-lens predict`: every method's failure, predicted from one measured curve and the distances of its plan.

Open first: law.py (the formula), then calibration.py; run.py measures what they need. Research: docs/law.md.
"""

"""`mesa-lens predict`: every method's failure, predicted from one measured curve and the distances of its plan.

In: losses of Origin, of a method that holds, and under gaps. Out: excess loss by length and failure length of any plan.
Open first: formula.py; then calibration.py, prediction.py, run.py. Why: docs/law.md.
"""

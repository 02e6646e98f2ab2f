"""Where hidden states leave their range, and the failure lengths read from that.

In: labelled hidden states and a `CrossingRule`; scores by length. Out: thresholds, crossings, predicted and measured
failure lengths. Open first: search.py, then predict.py; analysis.py does all of it for a run.
"""

"""Where hidden states leave their range, and the failure lengths read from that, by one of two rules.

`drift`, the default, judges a layer's dims jointly (drift.py; calls.py is what it says of each method). `paper` reads
thresholds dim by dim, as the paper does by eye (search.py, predict.py).

In: labelled hidden states and a `DriftRule` or a `CrossingRule`; scores by length. Out: calls, thresholds, crossings,
predicted and measured failure lengths. Open first: drift.py or search.py; analysis.py does all of it for a run.
"""

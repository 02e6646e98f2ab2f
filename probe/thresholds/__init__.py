"""Where hidden states leave their range, by one of two rules; and at which lengths failure is measured.

`drift`, the default, judges a layer's dims jointly (drift.py; onset.py: of each method). `paper` reads
thresholds dim by dim, as the paper does by eye (search.py, onset.py).

In: labelled hidden states and a `DriftRule` or a `CrossingRule`; scores by length. Out: onsets, thresholds, crossings,
drift onsets and measured failure lengths. Open first: drift.py or search.py; analysis.py does all of it for a run.
"""

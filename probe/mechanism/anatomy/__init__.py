"""What the inside looks like under each method: positional vectors, heads, frequencies, logit lens.

In: a bridged model, prompts and a method. Out: labelled arrays by layer, head or position.
Open first: heads.py, then positional.py (vectors that moments.py and collect.py gathered).
"""

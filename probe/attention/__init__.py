"""Attention analysis (`mesa-lens anatomy`): heads, rotary phases, logit lens and positional vectors by method.

In: a model, prompts and methods. Out: labelled arrays by layer, head or position. Open first: heads.py, then moments.py
and positional.py (the positional vectors).
"""

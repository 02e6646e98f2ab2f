"""Captures of hidden states in a forward pass.

In: a model, token ids, a method and a `CaptureSpec`. Out: hidden states, by layer, position and dim.
Open first: spec.py (what to keep), then capture.py; memory.py estimates what a pass takes.
"""

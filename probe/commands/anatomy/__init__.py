"""Attention analysis (`mesa-lens anatomy`): what every head attends to under each method, and which heads retrieve.

In: a model, prompts and methods. Out: labelled arrays by layer and head. Open first: heads.py.
"""

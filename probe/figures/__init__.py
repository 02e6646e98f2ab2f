"""Figures and tables of labelled values.

In: arrays from a store or a search, which carry their names and units. Out: charts, as HTML or pictures, and the
numbers in them. Open first: marks.py (what a chart is made of), then export.py; static.py and interactive.py draw.
"""

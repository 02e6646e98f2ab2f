"""Figures and tables of labelled values.

In: arrays from a store or a search, which carry their names and units. Out: charts, as HTML or pictures, and the
numbers in them. Open first: figure_data.py, then states.py (figures); interactive.py and static.py draw.
"""

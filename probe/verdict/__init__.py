"""The answer of a run: methods ranked, what broke, where, what mended it, how sure that is.

In: a run's summary, and what was located. Out: one object of plain numbers and texts, and it as text and as HTML.
Open first: verdict.py, the object; then rows.py, sentences.py and tables.py.
"""

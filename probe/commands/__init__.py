"""The commands that measure, one a folder: __init__ (request), plan, run, result, page.

In: the options of a command line or form. Out: a folder of journals and results, and a report of them.
Open first: table.py, which names them; then probe/run.py.
"""

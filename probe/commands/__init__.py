"""The commands that measure, one a folder: request, plan, run, result, sentences, figures, report.

In: the options of a command line or form. Out: a folder of journals and results, and a report of them.
Open first: table.py, which names them; then probe/run.py.
"""

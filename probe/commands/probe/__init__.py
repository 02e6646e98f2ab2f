"""`mesa-lens probe`: at which length the model fails under each method, and its hidden states.

In: a request (model, methods, lengths, what to keep). Out: a store, summary.json with the verdict, a report.
Open first: run.py, the whole path; verdict.py, the answer (then rows.py, sentences.py, tables.py); report.py.
"""

"""One module a page; each has `page(context)`. Not called `pages`: Streamlit would run what is in such a folder.

In: the context (the run that was chosen, and where widgets go). Out: one page. Open first: overview.py.
"""

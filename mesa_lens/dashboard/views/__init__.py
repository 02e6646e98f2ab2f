"""One module a page; each has `page(context)`. Not called `pages`: Streamlit would run what is in such a folder."""

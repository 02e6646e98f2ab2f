"""The dashboard for `streamlit run app.py`; `mesa-lens app` is the same. Pages are in mesa_lens/dashboard."""

import streamlit as st

from mesa_lens.dashboard.server import GUARDED, ROUTES, SCRIPT, in_browser

app = st.App(SCRIPT, middleware=GUARDED, lifespan=in_browser, routes=ROUTES)

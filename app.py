"""The dashboard's entry: `streamlit run app.py`, or `mesa-lens app`. Pages are in mesa_lens/dashboard."""

from mesa_lens.dashboard.main import main

main()

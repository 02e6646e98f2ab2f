"""The dashboard: Streamlit pages over what `mesa-lens probe` and `verify` wrote. Loads no model, and no torch."""

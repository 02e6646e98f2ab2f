"""The leaderboard as a Space: scores by model, task, method and length from leaderboard.csv; no torch."""

import math
from pathlib import Path

import pandas as pd
import plotly.express as px
import streamlit as st

TITLES = {"nll": "NLL (nats/token; lower is better)", "passkey": "passkeys found (share; higher is better)"}
HOVER = ["samples", "low", "high", "less_crop", "less_low", "less_high"]

st.set_page_config(page_title="Mesa Lens: leaderboard", layout="wide")
st.title("Which method fixes a model beyond its trained window?")
scores = pd.read_csv(Path(__file__).parent / "leaderboard.csv")
model = st.selectbox("Model", list(dict.fromkeys(scores["model"])))
scores = scores[scores["model"] == model]
task = st.radio("Task", list(dict.fromkeys(scores["task"])), format_func=TITLES.get, horizontal=True)
scores = scores[scores["task"] == task]
window = int(scores["window"].iloc[0])
names = list(dict.fromkeys(scores["method"]))
usual = [name for name in ("origin", "crop", "rerope", "dynamic-ntk", "mesa") if name in names]
methods = st.multiselect("Methods", names, default=usual or names)
drawn = scores[scores["method"].isin(methods)].sort_values("length")
labels = {"length": "prompt length (tokens)", "value": TITLES[task]}
figure = px.line(drawn, x="length", y="value", color="method", markers=True, labels=labels, hover_data=HOVER)
figure.update_xaxes(type="log", tickvals=sorted(drawn["length"].unique()), ticktext=sorted(drawn["length"].unique()))
figure.add_vline(x=window, line_dash="dash")
at = {"x": math.log10(window), "y": 1, "yref": "y domain"}  # of an annotation on a log axis x is the exponent
figure.add_annotation(**at, text=f"M = {window}", showarrow=False, yanchor="bottom")
st.plotly_chart(figure, width="stretch")
st.caption(
    "origin: the unmodified model. crop: the last M tokens alone, without the first token. "
    "Hover for 95% intervals; NLL is paired with crop on the same texts."
)
wide = scores.pivot_table(index="method", columns="length", values="value")
st.dataframe(wide.sort_values(wide.columns[-1], ascending=task == "nll").round(2), width="stretch")

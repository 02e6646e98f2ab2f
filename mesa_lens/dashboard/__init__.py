"""The dashboard: Streamlit pages over what `mesa-lens probe` and `verify` wrote. Loads no model, and no torch.

In: a folder of runs, and the address, which holds the view. Out: pages and downloads.
Open first: main.py, then a page in views/; runs.py opens runs and caches their analyses. It starts no process.
"""

from mesa_lens.namesakes import PACKAGES, check

check(*PACKAGES)

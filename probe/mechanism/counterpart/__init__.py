"""Whether heads of a trained model do what the theorems' constructed head does, and whether that is why it fails.

In: a model and texts longer than its window. Out: by head, how position is read from the attention on the first key,
where that leaves its in-window range, and what holding it there restores.
Open first: reading.py (what is read of each head), then hold.py (the intervention); run.py goes through all of it.
"""

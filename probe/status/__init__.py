"""How far a run is, for any folder that a command writes: done, failed and left, from its journals, stores and lock.

In: a folder. Out: a `Status`, as an object, as text and as JSON. Open `status.py` first. Loads no torch, writes nothing.
"""

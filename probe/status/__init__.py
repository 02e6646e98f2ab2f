"""How far a run is, for any folder that a command writes: done, failed and left, from its journals, stores and lock.

In: a folder. Out: a `Status`, as an object, as text and as JSON. It loads no torch and writes nothing.
Open first: status.py, then parts.py, what is counted.
"""

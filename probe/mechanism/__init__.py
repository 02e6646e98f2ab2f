"""Where inside the model length breaks it: interventions (locate) and measurements (anatomy).

In: a model, methods that mend it, and prompts longer than its window. Out: what every layer, head and dim restores.
Open first: interventions.py (what is tried), then contrast.py and passes.py (how); run.py goes through all of it.
"""

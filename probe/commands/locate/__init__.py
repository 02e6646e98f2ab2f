"""Causal interventions (`mesa-lens locate`): where inside the model its failure arises, and which heads fix it.

In: a model, methods, and prompts longer than the trained length. Out: the share of the excess loss that each layer,
head and dim recovers. Open first: interventions.py (what is tried), then tasks.py (in which order) and run.py (how).
"""

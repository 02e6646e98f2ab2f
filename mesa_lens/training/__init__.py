"""The making of the shipped model.

In: a training config and the text that every machine has. Out: a checkpoint with its tokenizer, scores and card.
Open first: train.py; mixture.py is what it reads, card.py measures and describes it.
"""

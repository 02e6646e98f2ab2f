"""The making of the shipped model and its siblings.

In: a recipe (config.py) and the text that every machine has. Out: a checkpoint with its tokenizer, scores and card.
Open first: train.py; mixture.py is what it reads, quizzes.py what is asked there, state.py where it goes on from, and
card.py measures and describes what came out.
"""

"""What all experiments share: tasks, their journal, lock, progress and estimate; workers in this process or on Ray.

In: an `Experiment`. Out: a journal with a row a task, in the tasks' order, whoever ran them.
Open first: run.py, then pool.py (tasks, workers of this process) and journal.py; ray.py: Ray.
"""

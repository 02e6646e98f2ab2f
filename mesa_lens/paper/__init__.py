"""The paper's experiments from one YAML config.

In: a config (configs/, or any YAML file). Out: a folder of runs and evaluations, and one report over them.
Open first: config.py, what a section may say; then runner.py.
"""

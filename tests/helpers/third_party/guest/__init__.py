"""A method, a task, a family with a quirk, and a command with a figure."""

"""The commands, one a folder: request, plan, run, result, sentences, figures, report."""

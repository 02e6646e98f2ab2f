"""Labelled hidden states on disk.

In: values, region by region, with their provenance. Out: a zarr folder, opened as a `Run`, and selections from it.
Open first: reader.py (`open_run`), then store.py, which writes; result_file.py reads the results
stored next to it.
"""

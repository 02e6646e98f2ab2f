"""Where weights lie and what is known of them before a model is loaded, which `mesa.models` does.

In: a model's name, as `--model` takes it. Out: its place, with revision and quantization; GGUF files made readable.
Open first: place.py (what `mesa-lens fetch` keeps is there, too); gguf_file.py checks files in GGUF, before
transformers reads them.
"""

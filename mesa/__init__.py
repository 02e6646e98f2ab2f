"""Training-free methods that let a causal language model read beyond its trained window."""

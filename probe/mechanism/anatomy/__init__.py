"""What the inside looks like under each method: positional vectors, heads, frequencies, logit lens."""

"""Captures hidden states of a model under each method, and reads thresholds from them."""

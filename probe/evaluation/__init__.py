"""Runs tasks over methods and lengths, resumably, and sums them up."""

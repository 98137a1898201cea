"""Graphs in fewer bits: which numbers are stored for which tensors."""

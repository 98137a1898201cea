"""Pruning a model by the size of its weights."""

"""Quantising a model by what its tensors hold on a user's data."""

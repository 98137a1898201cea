"""Graphs as StableHLO, the importer's way back: ``module`` is the whole, ``table`` the ops, ``lines`` the text."""

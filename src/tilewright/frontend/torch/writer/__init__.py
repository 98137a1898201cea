"""Graphs as PyTorch programs, the importer's way back: ``program`` is the whole, ``table`` the ops, ``values``
the walk.
"""

"""Strategies that make grids of a GPU; each states in its docstring what it is for."""

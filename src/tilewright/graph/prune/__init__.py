"""Graphs with fewer weights: which channels belong together, and the graph without some of them."""

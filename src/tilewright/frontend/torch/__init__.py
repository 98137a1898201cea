"""PyTorch programs into the graph IR."""

"""Programs as PyTorch traces them: calls, sizes, conditions, places."""

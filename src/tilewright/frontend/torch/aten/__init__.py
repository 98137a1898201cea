"""Converters of ATen calls, a file for each kind."""

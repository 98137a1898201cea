"""Converters of the standard's own ops, a file for each kind."""

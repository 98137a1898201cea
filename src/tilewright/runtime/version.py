"""The release, also of what is stored."""

__version__ = "0.1.0"

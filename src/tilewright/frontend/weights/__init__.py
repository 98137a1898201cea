"""Weights in files of their own: GGUF, safetensors, and models that are built from what such a file says."""

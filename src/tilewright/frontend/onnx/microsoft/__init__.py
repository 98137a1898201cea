"""Converters of ONNX Runtime's own ops."""

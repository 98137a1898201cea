"""ONNX models into the graph IR."""

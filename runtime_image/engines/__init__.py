"""What computes: ONNX Runtime sessions and Python handlers, one per file."""

"""Engines: ONNX Runtime sessions and Python handlers."""

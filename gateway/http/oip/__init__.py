"""Routes of the Open Inference Protocol below /v2, but the inference itself."""

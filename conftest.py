"""What holds for every test of the project, also those beside the functions."""

import os

# Before anything imports ONNX Runtime: it would write a usage database and keep it open.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

"""What tests of GPUs share."""

from tests.support.nvml.fixtures import board

__all__ = ["board"]

"""Fixtures of GPU tests."""

from tests.support.nvml.fixtures import board

__all__ = ["board"]

"""Runs whose inputs and outputs are bound to a device: one copy there, one copy back."""

from __future__ import annotations

from typing import Any

import numpy as np


def run_bound(
    session: Any, device: str, outputs: list[str], inputs: dict[str, Any], options: Any
) -> dict[str, Any]:
    """Arrays by output name. `device` ("cuda", "cpu") is where outputs are computed.

    An input goes to where the graph reads it when it is bound. Outputs are allocated there and
    copied when all are done, instead of each as soon as its node has run. Text cannot be bound.
    """
    if any(array.dtype.kind not in "biuf" for array in inputs.values()):
        return dict(zip(outputs, session.run(outputs, inputs, options), strict=True))
    binding = session.io_binding()
    for name, array in inputs.items():
        # What is bound is the array's memory, so it has to be one piece.
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    for name in outputs:
        binding.bind_output(name, device)
    session.run_with_iobinding(binding, options)
    return dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))

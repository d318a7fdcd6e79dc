"""Checks of the table [device] that several GPUs for one replica need, and its conversion."""

from __future__ import annotations

from dataclasses import replace

from registry.manifest.checks import refused
from registry.manifest.schema import DeviceTable
from registry.model.revisions import DeviceNeed


def device_need(table: DeviceTable, engine: str) -> DeviceNeed:
    """Convert the table of a function with this engine. With several GPUs the kind "any" becomes
    "cuda", as there is no CPU slot to fall back to.

    Raises BadManifest if several GPUs contradict another key, or what runs cannot use them.
    """
    need = DeviceNeed(**table.model_dump())
    if need.count == 1:
        return need
    if engine == "onnx":
        note = (
            "is for servers and Python functions alone: ONNX Runtime runs a model on one GPU, and a"
            " function with several replicas (scaling.max) uses several GPUs"
        )
        raise refused("device.count", "1 for a model", need.count, note)
    if need.kind == "cpu":
        raise refused("device.kind", f'"cuda" with device.count = {need.count}', need.kind)
    if need.share != 1:
        note = "is a part of one GPU: several are whole ones"
        raise refused("device.share", f"1 with device.count = {need.count}", need.share, note)
    return replace(need, kind="cuda")

"""A host whose GPUs are not used."""

from __future__ import annotations

from pool_manager.core.state import Device
from pool_manager.ports import Gpus


class NoGpus(Gpus):
    """No GPU: nothing is seen, measured or proved."""

    def __init__(self, silence: str = "") -> None:
        """`silence` says why there is none, where that is not as it should be."""
        self._silence = silence

    def devices(self) -> list[Device]:
        """None."""
        return []

    @property
    def silence(self) -> str:
        """Why the driver cannot be used, "" where there is none."""
        return self._silence

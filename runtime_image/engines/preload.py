"""Everything that a model may need and that is slow to have: what a standby does while it may."""

from __future__ import annotations

import gc


def preload(device_kind: str) -> None:
    """Import every engine and codec, run a first session on a device of this kind ("cpu", "cuda"),
    and clear away what that left over. Raises LoadError where there is no such device."""
    from runtime_image.codecs import image
    from runtime_image.engines import handler, prepared, sessions  # noqa: F401 - to have them

    sessions.warm_up(device_kind)
    image.preload()
    gc.collect()

"""The inputs of one run out of the inputs of its requests."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from runtime_image.codecs.plain.reading import PlainReader
from runtime_image.replica.stages.decoding import Decoded


def join(members: list[Decoded], reader: PlainReader | None) -> dict[str, Any]:
    """The rows of all members in order, by input name; `reader` made those that are lists."""
    parts: list[dict[str, Any]] = []
    for is_plain, group in groupby(members, lambda item: item.lists is not None):
        if is_plain:
            assert reader is not None, "only a reader makes lists"
            parts.append(reader.arrays([item.lists for item in group if item.lists is not None]))
        else:
            parts += [item.arrays for item in group if item.arrays is not None]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

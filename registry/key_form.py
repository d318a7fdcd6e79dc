"""Form of the keys that this server makes, the admin token among them. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

PREFIX: Final = "fn_"
KEY: Final = PREFIX.encode() + rb"[A-Za-z0-9_-]{43}"
KEY_FORM: Final = re.compile(rb"(?=(" + KEY + rb"))")
"""Every place at which a key may begin, also inside of another word; group 1 is the key."""


class KeyPriority(StrEnum):
    """The highest priority that a key's calls may have."""

    NORMAL = "normal"
    HIGH = "high"

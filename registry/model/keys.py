"""Access keys, and the scopes that requests need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from registry.key_form import KeyPriority

Need = Literal["invoke", "read", "deploy", "admin"]
"""Scope that a request needs."""


@dataclass(frozen=True, slots=True)
class Key:
    """An access key. The key itself is not stored."""

    id: str
    """Id in lists and logs."""
    sha256: str
    """SHA-256 of the key in hex."""
    scopes: tuple[str, ...]
    """What it allows: invoke, invoke:NAME, read, deploy, admin."""
    note: str = ""
    """The operator's words about it."""
    created_s: float = 0.0
    """Unix seconds."""
    priority: KeyPriority = KeyPriority.NORMAL
    """The highest priority that its calls may have."""

"""Operations: deploys and rollbacks that survive a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from registry.model.functions import NAMESPACE

OperationState = Literal["running", "done", "failed", "cancelled"]
OperationKind = Literal["deploy", "rollback"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Long-running work that survives a restart."""

    id: str
    """Id in the admin API."""
    kind: OperationKind
    """What is done."""
    name: str
    """Name of the function."""
    request: dict[str, Any]
    """The request as JSON: everything to run the operation again."""
    scopes: tuple[str, ...] = ("deploy",)
    """What the key that asked for it allowed; records of earlier releases count as deploy."""
    state: OperationState = "running"
    """Whether it goes on, or how it ended."""
    phase: str = "queued"
    """The present step, or the last one."""
    result: dict[str, Any] = field(default_factory=dict)
    """What it gave, as JSON; {} until it is done."""
    error: dict[str, Any] = field(default_factory=dict)
    """Problem document without type; {} for none."""
    namespace: str = NAMESPACE
    """Namespace of the function."""
    created_s: float = 0.0
    """Unix seconds."""
    ended_s: float = 0.0
    """Unix seconds; 0 until it has ended."""
    party: str = ""
    """Id of the key that asked for it, "" without a key."""

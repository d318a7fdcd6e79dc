"""First messages between a replica and its manager, and the socket pair between them."""

from __future__ import annotations

import socket
from typing import Any, cast

from runtime_image.contract import model as models
from runtime_image.contract.control import BindRequest, Hello
from runtime_image.contract.link import VERSION
from runtime_image.contract.model import ModelSpec

HELLO: Hello = {
    "token": "secret",
    "version": VERSION,
    "pid": 7,
    "features": [],
    "dial": 1,
    "bound": "default/digits@1",
    "phases": {"start": 1.5},
}
Pair = tuple[socket.socket, socket.socket]
"""The replica's blocking end and the manager's end."""


def bind_request(spec: ModelSpec, **changes: Any) -> BindRequest:
    """Return the BIND message for the pool default/digits@1."""
    request: Any = {
        "spec": models.to_json(spec),
        "bound": "default/digits@1",
        "namespace": "default",
        "role": "serve",
        "devices": ["cpu:0"],
        "device_kind": "cpu",
        "threads": 1,
        "memory_mib": 0,
        "phases": {"place": 1.5},
        "assigned_s": 0.0,
        **changes,
    }
    return cast("BindRequest", request)

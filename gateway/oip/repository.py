"""Bodies of requests to the model repository extension. Pure.

Source: Triton's extension "Model Repository".
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from registry.bounded_text import read_json
from registry.errors import BadRequest

T = TypeVar("T")
Settings = dict[str, Any]
"""Settings that a request wants to change."""
SHOWN_MAX: Final = 100


class IndexRequest(msgspec.Struct):
    """What the index is to list: with `ready` only models that can be called."""

    ready: bool = False


class ModelRequest(msgspec.Struct):
    """A request to load or to unload a model."""

    parameters: dict[str, Any] = {}


def check_load(body: bytes) -> None:
    """Raise BadRequest for a body that is invalid, or that gives the model another configuration or
    other files: a model is what was deployed."""
    for name in read_repository_request(body, ModelRequest).parameters:
        if name == "config" or name.startswith("file:"):
            raise BadRequest(
                f"parameters.{name[:SHOWN_MAX]}: expected none, as models are loaded as they were"
                " deployed: deploy the model with that configuration"
            )
        raise BadRequest(f"parameters: expected none, got {name[:SHOWN_MAX]!r}")


def check_unload(body: bytes) -> None:
    """Raise BadRequest for a body that is invalid. No model depends on another one, so
    `unload_dependents` may have either value."""
    dependents = read_repository_request(body, ModelRequest).parameters.get(
        "unload_dependents", False
    )
    if not isinstance(dependents, bool):
        shown = str(dependents)[:SHOWN_MAX]
        raise BadRequest(f"parameters.unload_dependents: expected true or false, got {shown!r}")


def read_repository_request(body: bytes, kind: type[T]) -> T:
    """Return the request of a body, which may be empty. Raises BadRequest."""
    return read_json(body.strip() or b"{}", kind, "the body")

"""Documents of `GET /v1/models`. Pure.

OpenAI API reference, "Models"; Anthropic API reference, "Models".
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gateway.v1.endpoints import Protocol
from registry.catalog import Deployed

OWNER: Final = "fngate"


class Model(NamedTuple):
    """One name of a model; `created_s` in Unix seconds."""

    id: str
    created_s: float


def names_of(deployed: Deployed) -> tuple[Model, ...]:
    """Return the names of a function's model: its own and its aliases."""
    function = deployed.function
    return tuple(Model(name, function.created_s) for name in (function.name, *function.aliases))


def list_document(protocol: Protocol, models: Iterable[Model]) -> dict[str, Any]:
    """Return the list of models; all of them are on one page."""
    data = [model_document(protocol, model) for model in models]
    if protocol is Protocol.OPENAI:
        return {"object": "list", "data": data}
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def model_document(protocol: Protocol, model: Model) -> dict[str, Any]:
    """Return the document of one model."""
    if protocol is Protocol.OPENAI:
        created = int(model.created_s)
        return {"id": model.id, "object": "model", "created": created, "owned_by": OWNER}
    at = datetime.fromtimestamp(int(model.created_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": model.id, "display_name": model.id, "created_at": at}

"""Documents of `GET /v1/models`. Pure.

OpenAI API reference, "Models"; Anthropic API reference, "Models".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from gateway.v1.endpoints import MODELS, PREFIX, Protocol
from registry.catalog import Catalog, Deployed
from registry.errors import UnknownModel
from runtime_image.contract.proposals import did_you_mean

OWNER: Final = "fngate"
_LIST: Final = (PREFIX + MODELS).decode()
_SHOWN_MAX: Final = 256


class Model(NamedTuple):
    """One name of a model; `created_s` in Unix seconds."""

    id: str
    created_s: float


def names_of(deployed: Deployed) -> tuple[Model, ...]:
    """Return the names of a function's model: its own and its aliases."""
    function = deployed.function
    return tuple(Model(name, function.created_s) for name in (function.name, *function.aliases))


def unknown_model(
    catalog: Catalog, model: str, is_shown: Callable[[Deployed], bool]
) -> UnknownModel:
    """Return the error for a name that no model has which `is_shown` to the caller. It proposes
    others that are."""

    def accepts(name: str) -> bool:
        found = catalog.find_model(name)
        return found is not None and is_shown(found)

    near = catalog.similar(model, accepts)
    return UnknownModel(
        f"no model {model[:_SHOWN_MAX]!r} that this key may use:"
        f" GET {_LIST} lists them{did_you_mean(near)}",
        detail={"nearest": near},
    )


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

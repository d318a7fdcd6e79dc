"""Documents of models."""

from __future__ import annotations

from gateway.v1.endpoints import Protocol
from gateway.v1.model_list import Model, list_document, model_document, names_of
from registry.catalog import Deployed
from tests.support import nouns

MODEL = Model("a/b", 86_400.9)


def test_a_model_as_clients_of_openai_read_it() -> None:
    """The time is in whole Unix seconds."""
    found = model_document(Protocol.OPENAI, MODEL)
    assert found == {"id": "a/b", "object": "model", "created": 86_400, "owned_by": "fngate"}
    assert list_document(Protocol.OPENAI, [MODEL]) == {"object": "list", "data": [found]}


def test_a_model_as_clients_of_anthropic_read_it() -> None:
    """The time is RFC 3339, and all models are on one page."""
    found = model_document(Protocol.ANTHROPIC, MODEL)
    at = "1970-01-02T00:00:00Z"
    assert found == {"type": "model", "id": "a/b", "display_name": "a/b", "created_at": at}
    listed = list_document(Protocol.ANTHROPIC, [MODEL, Model("c", 0.0)])
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("a/b", "c", False)
    assert list_document(Protocol.ANTHROPIC, [])["first_id"] is None


def test_the_names_of_a_function() -> None:
    """Its own comes first; all have the time of its making."""
    function = nouns.function("web", aliases=("x", "y"), created_s=5.0)
    names = names_of(Deployed(function, nouns.server_revision()))
    assert names == (Model("web", 5.0), Model("x", 5.0), Model("y", 5.0))

"""Tests of which pages of other origins may send requests where, and read the answers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admission.access import Access
from gateway.admission.origins import Origins
from gateway.pages.origins import EXPOSED
from registry.catalog import Catalog, Deployed
from registry.errors import ForeignOrigin
from registry.model.keys import Key
from registry.model.servers import ModelApi
from registry.store.keys import KeyRing
from tests.support import nouns

APP, OTHER, EVIL = "https://app.example", "https://other.example", "https://evil.example"
HOST = "127.0.0.1:8080"
SHARED = ("/fn/f", "/fn/f/x", "/v1/models", "/v1", "/v2", "/v2/models/f/infer", "/openapi.json")
CLOSED = ("/admin/v1/keys", "/", "/ui/", "/metrics", "/readyz", "/fnx", "/v12", "/openapi.jsonx")


def made(*origins: str, keys: int = 0, **server: Any) -> Origins:
    """Return the rules of a server whose settings list `origins`; `server`: settings of a
    function's server."""
    ring = KeyRing()
    for number in range(keys):
        ring.put(Key(str(number), str(number), ("invoke",)))
    revision = nouns.server_revision(**server)
    catalog = Catalog([nouns.deployed(), Deployed(nouns.function("web"), revision)])
    return Origins(Access("127.0.0.1", (), ring, b"", origins), catalog)


def test_only_listed_origins_and_only_calls() -> None:
    """A listed origin may send requests to functions and to the document, nowhere else; another one
    may not."""
    rules = made(APP)

    assert all(rules.may_ask(path, APP) for path in SHARED)
    assert not any(rules.may_ask(path, APP) for path in CLOSED)
    assert not any(rules.may_ask(path, EVIL) for path in SHARED)
    assert not any(made().may_ask(path, APP) for path in SHARED)


def test_any_origin_needs_keys() -> None:
    """`*` means no origin while the server has no keys, and every one afterwards, but not that of a
    page without one."""
    assert not made("*").may_ask("/fn/f", APP)
    assert made("*", keys=1).may_ask("/fn/f", APP)
    assert not made("*", keys=1).may_ask("/fn/f", "null")
    assert not made("*", keys=1).may_ask("/fn/f", "*")


def test_origins_of_models_may_ask_at_v1() -> None:
    """The origins that a model's function lists may ask at /v1, where its name is in the body, and
    not at /v2."""
    rules = made(origins=(OTHER,), api=ModelApi())

    assert rules.may_ask("/v1/chat/completions", OTHER)
    assert not rules.may_ask("/v2/models/f/infer", OTHER)
    assert not made(origins=(OTHER,)).may_ask("/v1/chat/completions", OTHER)


def test_the_function_decides() -> None:
    """A page that may ask at /v1 may call only functions that list its origin, or any if the
    settings list it."""
    rules = made(APP, origins=(OTHER,), api=ModelApi())
    web, model = nouns.server_deployed(origins=(OTHER,)), nouns.server_deployed()

    assert rules.may_call(OTHER, HOST, web)
    assert rules.may_call(APP, HOST, model)
    assert rules.may_call(None, HOST, model)
    assert rules.may_call(f"http://{HOST}", HOST, model)
    with pytest.raises(ForeignOrigin, match=r"other\.example"):
        rules.check_call(OTHER, HOST, model)


def test_fields_of_answers() -> None:
    """A listed page may read the answer and its headers, without cookies. Every answer says that it
    depends on the origin, but only where origins are listed."""
    fields = dict(made(APP).fields("/fn/f", APP))

    assert fields["Access-Control-Allow-Origin"] == APP
    assert fields["Access-Control-Expose-Headers"] == EXPOSED
    assert "Access-Control-Allow-Credentials" not in fields
    assert made(APP).fields("/fn/f", EVIL) == made(APP).fields("/fn/f", None)
    assert made(APP).fields("/fn/f", None) == (("Vary", "Origin"),)
    assert made().fields("/fn/f", APP) == ()
    assert made(APP).fields("/admin/v1/keys", APP) == ()


def test_preflights() -> None:
    """The preflight of a listed page is answered with what it asks for; others are none."""
    asked = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    rules = made(APP)

    fields = dict(rules.preflight("OPTIONS", "/fn/f", asked.get) or ())

    assert fields["Access-Control-Allow-Methods"] == "POST"
    assert fields["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert fields["Access-Control-Allow-Private-Network"] == "true"
    assert rules.preflight("POST", "/fn/f", asked.get) is None
    assert rules.preflight("OPTIONS", "/admin/v1/keys", asked.get) is None
    assert rules.preflight("OPTIONS", "/fn/f", {**asked, "Origin": EVIL}.get) is None
    assert rules.preflight("OPTIONS", "/fn/f", {"Origin": APP}.get) is None
    plain = {key: asked[key] for key in list(asked)[:2]}
    assert "Access-Control-Allow-Private-Network" not in dict(
        rules.preflight("OPTIONS", "/fn/f", plain.get) or ()
    )

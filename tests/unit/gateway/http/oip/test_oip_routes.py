"""Tests of the routes below /v2: documents, rights, loading, and the form of every error."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.http.oip.routes import BODY_MAX, is_strict
from gateway.http.oip.served import ServedModels
from registry.catalog import Deployed
from registry.errors import BadRequest, FunctionFailing
from registry.model.keys import Key
from registry.store.keys import fingerprint
from runtime_image.contract.signature import Signature
from tests.support import nouns
from tests.support.operator import until
from tests.support.peers import published
from tests.unit.gateway.http.conftest import TOKEN, Front

KEYS = {
    "all": ("invoke",),
    "digits": ("invoke:digits",),
    "other": ("invoke:other",),
    "reader": ("read",),
    "deployer": ("deploy",),
    "admin": ("admin",),
}
JSON = Signature("json", (), ())


@pytest.fixture
async def oip(front: Front) -> Front:
    """A gateway with digits, a model of another name and two versions, and a `json` function."""
    renamed = nouns.function("other", 2, oip_name="Other.Model")
    for number, version in ((1, "7"), (2, "")):
        revision = nouns.revision("other", number, oip_version=version)
        front.catalog.put(Deployed(renamed, revision, nouns.profile()))
    front.catalog.put(Deployed(nouns.function("words"), nouns.revision("words", signature=JSON)))
    return front


def lock(front: Front) -> None:
    """Add the keys: from now on the server is not open."""
    ring = front.gateway.invoker.access.ring
    for name, scopes in KEYS.items():
        ring.put(Key(name, fingerprint(f"fn_{name}"), scopes))


def key(name: str) -> dict[str, str]:
    """Return the header of a key."""
    return {"Authorization": f"Bearer {TOKEN if name == 'token' else 'fn_' + name}"}


async def text_of(front: Front, method: str, path: str, body: Any = b"") -> tuple[int, str]:
    """Return status and error text."""
    status, document, _ = await front.ask(method, path, body)
    return status, document["error"]


async def test_health_and_server(oip: Front) -> None:
    """The server lives, is ready, and says what it is."""
    assert (await oip.ask("GET", "/v2/health/live"))[:2] == (200, {"live": True})
    assert (await oip.ask("GET", "/v2/health/ready"))[:2] == (200, {"ready": True})
    status, document, _ = await oip.ask("GET", "/v2")
    assert (status, document["name"]) == (200, "fngate")
    assert (await oip.ask("HEAD", "/v2"))[0] == 200


async def test_a_server_that_stops_is_not_ready(oip: Front) -> None:
    """It lives, and calls are refused: neither server nor model is ready then."""
    oip.gateway.gate.is_open = False

    assert (await oip.ask("GET", "/v2/health/live"))[0] == 200
    for path in ("/v2/health/ready", "/v2/models/digits/ready"):
        status, document, headers = await oip.ask("GET", path)
        assert (status, headers["Fn-Problem"]) == (503, "shutting_down")
        assert (headers["Retry-After"], "error" in document) == ("5", True)


@pytest.mark.parametrize("path", ["/v2/models/Other.Model", "/v2/models/Other%2EModel/versions/7"])
async def test_a_model_has_metadata_and_a_configuration(oip: Front, path: str) -> None:
    """Both name the model as clients do, and all of its versions."""
    status, metadata, _ = await oip.ask("GET", path)
    assert (status, metadata["name"], metadata["versions"]) == (200, "Other.Model", ["2", "7"])
    status, config, _ = await oip.ask("GET", f"{path}/config")
    assert (status, config["name"], config["max_batch_size"]) == (200, "Other.Model", 32)


async def test_nothing_wakes(oip: Front) -> None:
    """A cold model answers every question at once, and no demand is reported for it."""
    for method, path in (
        ("GET", "/v2/models/digits"),
        ("GET", "/v2/models/digits/config"),
        ("GET", "/v2/models/digits/ready"),
        ("GET", "/v2/models/digits/ready?strict=1"),
        ("POST", "/v2/repository/index"),
    ):
        await oip.ask(method, path)

    assert oip.delivery.loads() == {}
    assert oip.models.loaded == []


async def test_ready_means_that_a_call_would_be_accepted(oip: Front) -> None:
    """A cold model is ready; strictly, only one with a replica is; one that fails is not."""
    path = "/v2/models/digits/ready"
    assert (await oip.ask("GET", path))[:2] == (200, {"name": "digits", "ready": True})
    assert await text_of(oip, "GET", f"{path}?strict=1") == (
        503,
        "The function is asleep: digits is cold, and the request asks for a ready replica",
    )
    oip.delivery.receive_endpoints(published(state="warm"))
    assert (await oip.ask("GET", f"{path}?strict=1"))[0] == 200
    oip.delivery.receive_endpoints(published(state="failing", reason="no file", retry_after_s=3.5))
    status, document, headers = await oip.ask("GET", path)
    assert (status, headers["Retry-After"]) == (503, "4")
    assert document["error"].endswith("digits fails to load: no file")
    assert (await oip.ask("GET", f"{path}?strict=maybe"))[0] == 400


def test_strict_is_a_boolean() -> None:
    """Both forms are understood, and everything else is refused."""
    assert [is_strict(given) for given in ("", "0", "false", "1", "true")] == [
        *(False, False, False),
        *(True, True),
    ]
    with pytest.raises(BadRequest):
        is_strict("2")


async def test_the_index_lists_every_version(oip: Front) -> None:
    """Functions without tensors are not in it; `ready` leaves out what fails to load."""
    status, entries, _ = await oip.ask("POST", "/v2/repository/index")
    found = [tuple(each.values()) for each in entries]  # type: ignore[attr-defined]
    assert (status, found) == (
        200,
        [
            ("digits", "1", "READY", "cold"),
            ("Other.Model", "2", "READY", "cold"),
            ("Other.Model", "7", "READY", "cold"),
        ],
    )
    oip.delivery.receive_endpoints(published(state="failing", reason="no file"))
    _, entries, _ = await oip.ask("POST", "/v2/repository/index", b'{"ready": true}')
    assert {each["name"] for each in entries} == {"Other.Model"}  # type: ignore[index]


async def test_a_load_waits_within_the_wait_budget(oip: Front) -> None:
    """It is the function's, or the one that the request prefers; the body is empty."""
    path = "/v2/repository/models/Other.Model/load"
    assert (await oip.ask("POST", path, b"{}"))[:2] == (200, {})
    await oip.ask("POST", path, b"", {"Prefer": "wait=3"})

    assert oip.models.loaded == [("other@2", 55.0), ("other@2", 3.0)]


async def test_a_load_that_fails_says_why(oip: Front) -> None:
    """The log of the replica is for administrators."""
    oip.models.error = FunctionFailing("no file", admin_detail={"log_tail": ["secret"]})
    path = "/v2/repository/models/digits/load"

    status, text = await text_of(oip, "POST", path)
    assert (status, text) == (503, "The function fails to load: no file")
    _, document, _ = await oip.ask("POST", path, b"", key("token"))
    assert "secret" in document["error"]


async def test_a_load_with_another_configuration_is_refused(oip: Front) -> None:
    """Nothing is loaded then."""
    body = b'{"parameters": {"config": "{}"}}'
    status, text = await text_of(oip, "POST", "/v2/repository/models/digits/load", body)

    assert (status, "parameters.config" in text) == (400, True)
    assert oip.models.loaded == []


async def test_a_client_that_leaves_ends_its_wait(oip: Front) -> None:
    """The wait is cancelled with the request."""
    oip.models.is_slow = True
    waiting = asyncio.create_task(oip.ask("POST", "/v2/repository/models/digits/load"))
    await until(lambda: bool(oip.models.loaded))
    waiting.cancel()

    await until(lambda: oip.models.left == ["digits@1"])


async def test_a_shutdown_ends_a_wait(oip: Front) -> None:
    """The client gets the protocol's error; a load that comes later is refused."""
    oip.models.is_slow = True
    path = "/v2/repository/models/digits/load"
    waiting = asyncio.create_task(oip.ask("POST", path))
    await until(lambda: bool(oip.models.loaded))
    await oip.gateway.oip.models.waits.stop()

    status, document, headers = await waiting
    assert (status, headers["Fn-Problem"], "error" in document) == (503, "shutting_down", True)
    oip.gateway.gate.is_open = False
    assert (await oip.ask("POST", path))[0] == 503
    assert len(oip.models.loaded) == 1


async def test_an_unload_is_answered_at_once(oip: Front) -> None:
    """Clients send whether dependents are to be unloaded."""
    body = b'{"parameters": {"unload_dependents": true}}'
    path = "/v2/repository/models/Other.Model/unload"

    assert (await oip.ask("POST", path, body))[:2] == (200, {})
    assert oip.models.unloaded == ["other"]


async def test_shared_memory_is_refused(oip: Front) -> None:
    """Unregistering succeeds, as examples begin with it; registering never does."""
    for memory in ("systemsharedmemory", "cudasharedmemory"):
        base = f"/v2/{memory}"
        assert (await oip.ask("GET", f"{base}/status"))[:2] == (200, [])
        assert (await oip.ask("POST", f"{base}/unregister"))[0] == 200
        assert (await oip.ask("POST", f"{base}/region/a/unregister"))[0] == 200
        assert (await oip.ask("POST", f"{base}/region/a/register", b"{}"))[0] == 400
        assert (await oip.ask("GET", f"{base}/region/a/status"))[0] == 404


@pytest.mark.parametrize("path", ["/trace/setting", "/models/digits/trace/setting", "/logging"])
async def test_settings_are_shown_and_fixed(oip: Front, path: str) -> None:
    """Only administrators see them. An update without a change shows them, too."""
    assert (await oip.ask("GET", f"/v2{path}"))[0] == 401
    status, settings, _ = await oip.ask("GET", f"/v2{path}", b"", key("token"))
    assert (status, bool(settings)) == (200, True)
    for body, wanted in ((b"{}", 200), (b'{"a": null}', 200), (b'{"trace_rate": "1"}', 400)):
        assert (await oip.ask("POST", f"/v2{path}", body, key("token")))[0] == wanted


async def test_what_is_not_served_says_so(oip: Front) -> None:
    """Generation is a part of the protocol that this server does not have."""
    for end in ("generate", "generate_stream", "versions/1/generate"):
        status, document, headers = await oip.ask("POST", f"/v2/models/digits/{end}", b"{}")
        assert (status, headers["Fn-Problem"]) == (501, "not_served")
        assert "call infer" in document["error"]


ERRORS = [
    ("GET", "/v2/nothing", {}, b"", 404, "unknown"),
    ("GET", "/v2/models/nobody", {}, b"", 404, "unknown_model"),
    ("GET", "/v2/models/digits/versions/9", {}, b"", 404, "unknown_model"),
    ("GET", "/v2/models/digits/versions/x", {}, b"", 404, "unknown_model"),
    ("GET", "/v2/models/words", {}, b"", 404, "unknown_model"),
    ("POST", "/v2/models/words/infer", {}, b"{}", 404, "unknown_model"),
    ("POST", "/v2/models/n%6fbody/infer", {}, b"{}", 404, "unknown_model"),
    ("GET", "/v2/models/digits/infer", {}, b"", 405, "method_not_allowed"),
    ("PUT", "/v2/models/digits", {}, b"", 405, "method_not_allowed"),
    ("GET", "/v2", {"Host": "elsewhere"}, b"", 421, "foreign_host"),
    ("GET", "/v2", {"Origin": "http://elsewhere"}, b"", 403, "foreign_origin"),
    ("POST", "/v2/repository/index", {}, b"x" * (BODY_MAX + 1), 413, "body_too_large"),
    ("POST", "/v2/repository/index", {}, b"[", 400, "bad_request"),
    ("POST", "/v2/repository/index", {"Content-Encoding": "br"}, b"[", 415, "unsupported_encoding"),
    ("POST", "/v2/repository/index", {"Expect": "tea"}, b"[", 417, "expectation_failed"),
]


@pytest.mark.parametrize(("method", "path", "headers", "body", "status", "code"), ERRORS)
async def test_every_error_has_the_protocols_form(
    oip: Front, method: str, path: str, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    """Errors of routes, of the boundary and of aiohttp are `{"error": text}` with a code."""
    got, document, fields = await oip.ask(method, path, body, headers)

    assert (got, fields["Fn-Problem"]) == (status, code)
    assert list(document) == ["error"]
    assert isinstance(document["error"], str)
    assert ("Allow" in fields) == (status == 405)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v2/models/digits HTTP/1.1\r\nHost\r\n\r\n", b"400"),
        (b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /v2 HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"POST /v2/models/digits/infer HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
    ],
)
async def test_what_is_no_http_is_refused_in_the_protocols_form(
    oip: Front, sent: bytes, status: bytes
) -> None:
    """The request line tells the form, even if the head cannot be parsed."""
    port = int(oip.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()

    assert head.split(b" ")[1] == status
    assert list(json.loads(body)) == ["error"]
    assert b"Fn-Problem: " in head


@pytest.mark.parametrize(
    ("path", "models"),
    [
        ("/models/stats", [("digits", "1"), ("Other.Model", "2"), ("Other.Model", "7")]),
        ("/models/Other.Model/stats", [("Other.Model", "2"), ("Other.Model", "7")]),
        ("/models/Other.Model/versions/7/stats", [("Other.Model", "7")]),
    ],
)
async def test_statistics(oip: Front, path: str, models: list[tuple[str, str]]) -> None:
    """Of all models, of all versions of one, or of one version."""
    status, document, _ = await oip.ask("GET", f"/v2{path}")

    found = [(each["name"], each["version"]) for each in document["model_stats"]]
    assert (status, found) == (200, models)
    assert all(each["inference_count"] == 0 for each in document["model_stats"])


RIGHTS = {
    ("GET", "/v2/health/live"): {"", *KEYS},
    ("GET", "/v2/health/ready"): {"", *KEYS},
    ("GET", "/v2"): {*KEYS},
    ("POST", "/v2/repository/index"): {*KEYS},
    ("GET", "/v2/systemsharedmemory/status"): {*KEYS},
    ("POST", "/v2/cudasharedmemory/unregister"): {*KEYS},
    ("GET", "/v2/models/digits"): {"all", "digits", "admin"},
    ("GET", "/v2/models/digits/config"): {"all", "digits", "admin"},
    ("GET", "/v2/models/digits/ready"): {"all", "digits", "admin"},
    ("GET", "/v2/models/Other.Model"): {"all", "other", "admin"},
    ("POST", "/v2/repository/models/digits/load"): {"deployer", "admin"},
    ("POST", "/v2/repository/models/digits/unload"): {"deployer", "admin"},
    ("GET", "/v2/models/stats"): {"reader", "deployer", "admin"},
    ("GET", "/v2/models/digits/stats"): {"reader", "deployer", "admin"},
    ("GET", "/v2/trace/setting"): {"admin"},
    ("GET", "/v2/logging"): {"admin"},
}


@pytest.mark.parametrize(("route", "allowed"), list(RIGHTS.items()))
async def test_rights(oip: Front, route: tuple[str, str], allowed: set[str]) -> None:
    """Each route lets in the keys of its scope; without a key 401, with another one 403."""
    lock(oip)
    for name in ("", *KEYS):
        status, document, _ = await oip.ask(*route, b"", key(name) if name else {})
        wanted = 200 if name in allowed else 403 if name else 401
        assert (name, status) == (name, wanted)
        assert wanted == 200 or list(document) == ["error"]


async def test_the_index_is_of_what_the_key_may_call(oip: Front) -> None:
    """A key for one function learns of no other; a key that may call none gets an empty list."""
    lock(oip)
    for name, wanted in (("other", {"Other.Model"}), ("reader", set()), ("admin", 2)):
        _, entries, _ = await oip.ask("POST", "/v2/repository/index", b"", key(name))
        found = {each["name"] for each in entries}  # type: ignore[index]
        assert wanted in (found, len(found))


async def test_a_key_for_one_function_learns_of_no_other(oip: Front) -> None:
    """Whether another model exists makes no difference."""
    lock(oip)
    paths = ("/v2/models/nobody", "/v2/models/digits", "/v2/models/digits/versions/9")
    answers = [(await oip.ask("GET", path, b"", key("other")))[:2] for path in paths]

    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == 403


async def test_without_a_model_control_nothing_is_loaded(oip: Front) -> None:
    """A gateway without a pool manager says that it cannot."""
    routes = oip.gateway.oip
    routes.models = ServedModels(replace_control(routes._invoker))

    assert (await oip.ask("POST", "/v2/repository/models/digits/load"))[0] == 501


def replace_control(invoker: Any) -> Any:
    """Return the invoker without a model control."""
    return invoker._replace(model_control=None)

"""Tests of the OpenAPI documents over HTTP, and of real answers about server functions."""

from __future__ import annotations

from openapi_spec_validator import validate

from tests.support.described import check_answer, described_routes
from tests.support.server import ServingServer

SERVER = 'schema = 1\n[server]\ncommand = "serve ${PORT}"\n[openai]\n'
FUNCTION = "/functions/{name}"
ABOUT_FUNCTIONS = (
    "/functions",
    FUNCTION,
    f"{FUNCTION}/revisions",
    f"{FUNCTION}/why",
    f"{FUNCTION}/errors",
    f"{FUNCTION}/logs",
    f"{FUNCTION}/timeline",
    "/operations",
    "/pools",
    "/replicas",
)


async def test_the_document_is_public(server: ServingServer) -> None:
    """The document needs no key, also while there are keys; clients that have it get no copy."""
    await server.admin("POST", "/keys", {"scopes": ["read"]})

    answer = await server.get("/openapi.json")

    document = answer.json()
    assert (answer.status, document["info"]["title"]) == (200, "fngate")
    assert document.keys() >= {"openapi", "paths", "components"}
    known = {"If-None-Match": answer.headers["ETag"]}
    again = await server.request("GET", "/openapi.json", None, known)
    assert (again.status, again.body) == (304, b"")
    other = await server.request("GET", "/openapi.json", None, {"If-None-Match": '"other"'})
    assert (other.status, other.body) == (200, answer.body)


async def test_a_link_from_another_site_may_lead_here(server: ServingServer) -> None:
    """The document and its page are the same for everybody, so other sites may link to them."""
    headers = {"Sec-Fetch-Site": "cross-site"}
    for path in ("/openapi.json", "/docs"):
        assert (await server.request("GET", path, None, headers)).status == 200


async def test_the_document_of_a_function_needs_a_key(server: ServingServer) -> None:
    """The document of a function needs the scope invoke, and changes with the traffic."""
    await server.deploy({"m.onnx": b"\x3a\x00"}, name="f")
    path = "/fn/f/openapi.json"
    first = await server.get(path)
    validate(first.json())
    key = await server.admin("POST", "/keys", {"scopes": ["invoke:g"]})

    assert (await server.get(path)).status == 401
    bearer = {"Authorization": f"Bearer {key.json()['secret']}"}
    assert (await server.request("GET", path, None, bearer)).status == 403
    admin = {"Authorization": f"Bearer {server.token}"}
    assert (await server.request("GET", path, None, admin)).json() == first.json()
    pinned = await server.request("GET", "/fn/f@9/openapi.json", None, admin)
    assert pinned.problem["code"] == "unknown_revision"


async def test_answers_about_a_server_function_are_as_described(server: ServingServer) -> None:
    """Every member of the answers about a server function is in the document, and the reverse."""
    described = described_routes()
    await server.deploy({"app.py": b""}, name="web", manifest=SERVER)

    for path in ABOUT_FUNCTIONS:
        answer = await server.admin("GET", path.format(name="web"))
        assert answer.status == 200
        check_answer(described[f"GET /admin/v1{path}"], 200, "application/json", answer.body)
    answer = await server.get("/fn/web")
    check_answer(described["GET /fn/{name}"], 200, "application/json", answer.body)
    ticket = await server.admin("POST", "/functions/web/tickets", {})
    check_answer(
        described["POST /admin/v1/functions/{name}/tickets"], 201, "application/json", ticket.body
    )


async def test_lists_of_models_are_as_described(server: ServingServer) -> None:
    """Both forms of the list of models, and of one model, are in the document."""
    described = described_routes()
    await server.deploy({"app.py": b""}, name="web", manifest=SERVER)
    for headers in ({}, {"anthropic-version": "2023-06-01"}):
        for path in ("/v1/models", "/v1/models/{id}"):
            answer = await server.request("GET", path.format(id="web"), None, headers)
            check_answer(described[f"GET {path}"], answer.status, "application/json", answer.body)
            assert answer.status == 200

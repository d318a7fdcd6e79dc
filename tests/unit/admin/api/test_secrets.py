"""Tests of secrets over the admin API, with servers of the fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.server import ServingServer

VALUE = "hunter2-7d1f"
MANIFEST = """
schema = 1
[server]
command = "serve ${PORT}"
[server.secrets]
HF_TOKEN = "hf"
"""
FILES = {"app.py": b"app"}


async def put(server: ServingServer, name: str = "hf", value: str = VALUE) -> dict[str, object]:
    answer = await server.admin("POST", "/secrets", {"name": name, "value": value})
    assert answer.status in (200, 201), answer
    found: dict[str, object] = answer.json()
    return found


async def test_a_secret_is_set_listed_and_removed(server: ServingServer) -> None:
    """No answer has the value."""
    answer = await server.admin("POST", "/secrets", {"name": "hf", "value": VALUE})
    assert answer.status == 201
    made = answer.json()
    assert made | {"set_s": 0} == {
        "name": "hf",
        "set_s": 0,
        "created": True,
        "changed": True,
        "stale": [],
        "unreadable": [],
    }
    assert (await put(server))["changed"] is False

    listed = (await server.admin("GET", "/secrets")).json()["items"]
    assert [one | {"set_s": 0} for one in listed] == [
        {"name": "hf", "set_s": 0, "problem": "", "functions": []}
    ]
    removed = await server.admin("DELETE", "/secrets/hf")
    assert removed.json() == {"removed": "hf", "needed_by": []}
    assert (await server.admin("DELETE", "/secrets/hf")).status == 404


async def test_secrets_need_the_scope_admin(server: ServingServer) -> None:
    """A key with the scope deploy can neither list nor set secrets."""
    made = await server.admin("POST", "/keys", {"scopes": ["deploy", "read"]})
    bearer = {"Authorization": f"Bearer {made.json()['secret']}"}

    for method in ("GET", "POST"):
        answer = await server.request(method, "/admin/v1/secrets", {}, bearer)
        assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "hf", "value": "' + VALUE.encode(),
        b'{"name": "hf", "value": ["' + VALUE.encode() + b'"]}',
        b'{"name": "hf", "' + VALUE.encode() + b'": 1}',
        b'{"name": "hf", "value": "' + VALUE.encode() + b'\xff"}',
        b'{"name": "hf", "value": "' + VALUE.encode() + b'\\u0000"}',
    ],
)
async def test_a_bad_request_is_refused_without_its_value(
    server: ServingServer, body: bytes
) -> None:
    """The problem document quotes nothing of the request."""
    answer = await server.admin("POST", "/secrets", body)

    assert answer.status == 400
    assert VALUE.encode() not in answer.body


async def test_a_deploy_without_its_secret_is_refused_before_a_trial(
    server: ServingServer,
) -> None:
    """The refusal names key, secret and command; no operation begins."""
    answer = await server.try_deploy(FILES, name="web", manifest=MANIFEST)

    assert answer.problem["detail"] == ("server.secrets: no secret hf; set it: fnctl secret set hf")
    operations = (await server.admin("GET", "/operations")).json()["items"]
    assert [one["name"] for one in operations] == ["digits"]


async def test_a_needed_secret_is_only_removed_by_force(server: ServingServer) -> None:
    """While the revision with the traffic needs it, a removal names the function."""
    await put(server)
    await server.deploy(FILES, name="web", manifest=MANIFEST)

    refused = await server.admin("DELETE", "/secrets/hf")
    assert (refused.status, refused.problem["functions"]) == (409, ["web"])
    assert (await server.admin("DELETE", "/secrets/hf?force=1")).status == 400

    removed = await server.admin("DELETE", "/secrets/hf?force=true")
    assert removed.json() == {"removed": "hf", "needed_by": ["web@1"]}
    warm = await server.admin("POST", "/functions/web/warm?wait=30")
    assert "no secret hf; set it: fnctl secret set hf" in warm.problem["detail"]

    await put(server)
    assert (await server.admin("POST", "/functions/web/warm?wait=30")).status == 200


async def test_an_earlier_revisions_secret_may_go_and_blocks_a_rollback(
    server: ServingServer,
) -> None:
    """A revision without traffic does not keep a secret; a rollback to it is then refused."""
    await put(server)
    await server.deploy(FILES, name="web", manifest=MANIFEST)
    await server.deploy(FILES, name="web", manifest=MANIFEST.partition("[server.secrets]")[0])

    removed = await server.admin("DELETE", "/secrets/hf")
    assert removed.json()["needed_by"] == ["web@1"]

    refused = await server.admin("POST", "/functions/web/rollback", {})
    assert "no secret hf" in refused.problem["detail"]


async def test_a_new_value_names_functions_with_the_old_one(server: ServingServer) -> None:
    """Functions with a replica are named while the replica lives; others are not."""
    await put(server)
    await server.deploy(FILES, name="web", manifest=MANIFEST)
    await server.until_pools(lambda: not server.bound())
    assert (await put(server, value="other"))["stale"] == []

    assert (await server.admin("POST", "/functions/web/warm?wait=30")).status == 200
    assert (await put(server, value="new"))["stale"] == ["web"]
    assert (await put(server, value="new"))["stale"] == []


async def test_without_its_key_a_function_fails_and_says_what_to_do(
    server: ServingServer, tmp_path: Path
) -> None:
    """A restored database without key: the list says so, deploys are refused, starts fail."""
    await put(server)
    await server.deploy(FILES, name="web", manifest=MANIFEST)
    (tmp_path / "data" / "secret.key").unlink()

    listed = (await server.admin("GET", "/secrets")).json()["items"]
    assert "its key is missing" in listed[0]["problem"]
    assert listed[0]["functions"] == ["web"]
    refused = await server.try_deploy(FILES, name="other", manifest=MANIFEST)
    assert "put that file back, or set it again" in refused.problem["detail"]
    warm = await server.admin("POST", "/functions/web/warm?wait=30")
    assert warm.status == 503
    assert "secret.key does not exist; put that file back" in warm.problem["detail"]

    assert (await put(server))["changed"] is True
    assert (await server.admin("POST", "/functions/web/warm?wait=30")).status == 200


UPSTREAM = """
schema = 1
[server]
command = "serve ${PORT}"
[openai]
upstream_key = "hf"
"""


async def test_an_upstream_key_must_be_there_and_fit_a_header(server: ServingServer) -> None:
    """A deploy without it is refused before a trial, as one with a value that no header may have;
    the value is not quoted."""
    answer = await server.try_deploy(FILES, name="web", manifest=UPSTREAM)
    assert answer.problem["detail"] == (
        "openai.upstream_key: no secret hf; set it: fnctl secret set hf"
    )
    await put(server, value=f"{VALUE}\nX-Evil: 1")
    answer = await server.try_deploy(FILES, name="web", manifest=UPSTREAM)
    assert answer.problem["detail"].startswith("openai.upstream_key: secret hf is no key: expected")
    assert VALUE.encode() not in answer.body
    operations = (await server.admin("GET", "/operations")).json()["items"]
    assert [one["name"] for one in operations] == ["digits"]


async def test_an_upstream_key_is_needed_and_never_stale(server: ServingServer) -> None:
    """It counts as a need of its function. Replicas do not have it, so a new value counts at
    once."""
    await put(server)
    await server.deploy(FILES, name="web", manifest=UPSTREAM)
    assert (await server.admin("POST", "/functions/web/warm?wait=30")).status == 200
    keys = server.server.store.upstream_keys

    listed = (await server.admin("GET", "/secrets")).json()["items"]
    assert listed[0]["functions"] == ["web"]
    assert (await put(server, value="new"))["stale"] == []
    assert [one.value for one in keys.all()] == ["new"]

    refused = await server.admin("DELETE", "/secrets/hf")
    assert (refused.status, refused.problem["functions"]) == (409, ["web"])
    removed = await server.admin("DELETE", "/secrets/hf?force=true")
    assert removed.json() == {"removed": "hf", "needed_by": ["web@1"]}
    assert [one.value for one in keys.all()] == [""]

    await put(server, value="again")
    assert [one.value for one in keys.all()] == ["again"]
    await server.admin("DELETE", "/functions/web")
    assert keys.all() == ()

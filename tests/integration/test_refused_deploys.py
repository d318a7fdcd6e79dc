"""Tests of refused deploys: they give the reason and change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.support import models
from tests.support.caller import Caller
from tests.support.fake_driver.driver import FakeDriver
from tests.support.server import Answer, ServingServer, serving

ROW: dict[str, Any] = {"inputs": {"x": [[1, 2, 3, 4]]}}
EMPTY = b"\x3a\x00"
"""ONNX file with an empty graph, enough for fake replicas."""
SHA256 = "0" * 64


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server over real replicas, with the function `f` that returns x + 1."""
    async with serving(tmp_path) as server:
        await server.deploy(models.add_one(tmp_path), name="f")
        yield server


def reason(answer: Answer) -> tuple[str, str]:
    """Return code and text of the refusal, at whichever step of the deploy it came."""
    if answer.status != 200:
        return answer.problem["code"], answer.problem["detail"]
    operation = answer.json()
    assert operation["state"] == "failed", operation
    return operation["error"]["code"], operation["error"]["detail"]


async def is_unchanged(server: ServingServer) -> bool:
    """Return whether `f@1` is the only revision, still answers, and no trial is left."""
    listed = (await server.admin("GET", "/functions")).json()["items"]
    answer = await server.call("f", ROW)
    await server.until_pools(lambda: all(one.role == "serve" for one in server.bound()))
    return (
        [item["revision"] for item in listed] == ["f@1"]
        and answer.status == 200
        and answer.json()["outputs"]["y"] == [[2, 3, 4, 5]]
    )


async def test_a_model_that_is_no_onnx_file_is_refused_before_any_replica(
    server: ServingServer, tmp_path: Path
) -> None:
    """Garbage, an empty file and half a model are 422 with the file and the reason."""
    contents = [b"hello, I am no model", b"", models.corrupt(tmp_path).read_bytes()]

    for content in contents:
        for name in ("f", "new"):
            answer = await server.try_deploy({"m.onnx": content}, name=name)
            assert answer.status == 422, answer
            code, text = reason(answer)
            assert code == "model_refused"
            assert text.startswith("m.onnx is not an ONNX model: ")

    assert await is_unchanged(server)


async def test_a_model_of_an_unknown_opset_is_refused_with_the_engines_reason(
    server: ServingServer, tmp_path: Path
) -> None:
    """An unknown opset fails the operation in `verify` with ONNX Runtime's reason."""
    answer = await server.try_deploy(models.unsupported_opset(tmp_path), name="f")

    code, text = reason(answer)
    assert (code, answer.json()["phase"]) == ("model_refused", "verify")
    assert "opset" in text
    assert await is_unchanged(server)


async def test_a_model_whose_types_cannot_be_named_is_refused(
    server: ServingServer, tmp_path: Path
) -> None:
    """A model without a usable signature is refused with the name of the output at fault."""
    code, text = reason(await server.try_deploy(models.unsupported_type(tmp_path), name="f"))

    assert code == "model_refused"
    assert "y" in text
    assert "seq(tensor(float))" in text
    assert await is_unchanged(server)


@pytest.mark.slow  # a large model is made and uploaded
async def test_a_model_over_its_memory_cap_is_refused(
    server: ServingServer, tmp_path: Path
) -> None:
    """A model that exceeds its function's memory cap is refused with the cap."""
    large = models.big(tmp_path, 128)

    code, text = reason(await server.try_deploy(large, name="f", memory_mib=128))

    assert code == "model_refused"
    assert text.endswith("std::bad_alloc (its memory cap is 128 MiB)")
    assert await is_unchanged(server)


async def test_a_sample_that_fails_is_refused(server: ServingServer, tmp_path: Path) -> None:
    """A manifest's sample that fails to run is refused with the model's reason."""
    model = models.fails_on_negative(tmp_path)
    manifest = f'schema = 1\nmodel = "{model.name}"\n[sample]\nx = [[-1, 0, 0, 0]]\n'

    answer = await server.try_deploy(model, name="f", manifest=manifest)

    code, text = reason(answer)
    assert (code, answer.json()["error"]["stage"]) == ("model_refused", "sample")
    assert "out of data bounds" in text
    assert await is_unchanged(server)


async def test_a_handler_that_cannot_be_imported_is_refused_with_its_last_words(
    server: ServingServer,
) -> None:
    """A handler that cannot be imported is refused with its exception and its output."""
    handler = b"print('cannot find my weights', flush=True)\nraise KeyError('weights')\n"
    manifest = 'schema = 1\n[runtime]\nengine = "python"\n[input.r]\nkind = "json"\n'

    answer = await server.try_deploy({"handler.py": handler}, name="f", manifest=manifest)

    text = "importing handler.py raised KeyError: 'weights' (handler.py:2)"
    assert reason(answer) == ("model_refused", text)
    log = answer.json()["error"]["log_tail"]
    assert "cannot find my weights" in log
    assert "Traceback (most recent call last):" in log
    assert '  File "handler.py", line 2, in <module>' in log
    assert await is_unchanged(server)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
async def test_external_data_outside_the_bundle_is_refused(
    server: ServingServer, tmp_path: Path, location: str
) -> None:
    """External data outside the bundle is 422 with its location; the file is never opened."""
    path = models.external(tmp_path, 1)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    files = {"external.onnx": model.SerializeToString()}

    code, text = reason(await server.try_deploy(files, name="f"))

    assert code == "bad_bundle"
    assert location in text
    assert await is_unchanged(server)


async def test_external_data_that_was_not_uploaded_is_refused(
    server: ServingServer, tmp_path: Path
) -> None:
    """Missing external data is 422 with the file's name."""
    model = models.external(tmp_path, 1)

    code, text = reason(await server.try_deploy(model, name="f"))

    assert code == "bad_bundle"
    assert "external.bin" in text
    assert await is_unchanged(server)


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """A server over fake replicas, for deploys refused before any replica starts."""
    async with serving(tmp_path, FakeDriver()) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("../m.onnx", "has the part '..'"),
        ("/etc/m.onnx", "is absolute"),
        ("a/../m.onnx", "has the part '..'"),
        ("a\\m.onnx", "has a backslash"),
        ("a\x00m.onnx", "has a control or invisible character"),
        ("./m.onnx", "has the part '.'"),
    ],
)
async def test_path_tricks_in_a_bundle_are_refused(
    fake: ServingServer, path: str, rule: str
) -> None:
    """A path that breaks a rule is 422 with the path and the rule; no function appears."""
    code, text = reason(await fake.try_deploy({path: EMPTY}, name="f"))

    assert code == "bad_bundle"
    assert text.endswith(rule)
    assert (await fake.admin("GET", "/functions")).json()["items"] == []


async def test_two_paths_for_one_file_are_refused(fake: ServingServer) -> None:
    """Two names that some filesystems treat as one are 422."""
    answer = await fake.try_deploy({"m.onnx": EMPTY, "M.ONNX": EMPTY}, name="f")

    assert answer.problem["detail"] == "'m.onnx' is the same file as 'M.ONNX' on some filesystems"


async def test_a_file_over_the_limit_is_refused_by_its_announced_length(
    fake: ServingServer,
) -> None:
    """A file over the limit is 413 by its announced length; nothing of it is kept."""
    size = 10**15
    host, port = fake.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"PUT /admin/v1/blobs/{SHA256} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {size}\r\n"
    writer.write(f"{head}Authorization: Bearer {fake.token}\r\n\r\n".encode())
    answer = await reader.readuntil(b"}")
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert f"bytes, got {size}".encode() in answer
    assert (await fake.admin("HEAD", f"/blobs/{SHA256}")).status == 404


async def test_a_blob_that_is_not_what_it_says_is_refused(fake: ServingServer) -> None:
    """A blob with another hash is 422 with both hashes and is not kept."""
    answer = await fake.admin("PUT", f"/blobs/{SHA256}", b"something else")

    assert answer.status == 422
    assert answer.problem["detail"].startswith(f"expected sha256 {SHA256}, got ")
    assert (await fake.admin("HEAD", f"/blobs/{SHA256}")).status == 404


async def test_a_deploy_of_files_that_were_not_uploaded_is_refused(fake: ServingServer) -> None:
    """Missing blobs are 422 with the hash of the first."""
    request = {"files": [{"path": "m.onnx", "size": 2, "sha256": SHA256}], "model": "m.onnx"}
    answer = await fake.admin("POST", "/functions/f/revisions", request)

    assert answer.status == 422
    assert answer.problem["detail"] == f"1 files were not uploaded, first {SHA256}"


async def test_a_handler_needs_trust(fake: ServingServer) -> None:
    """A handler without trust is 422 with the risk, the server's rights, and the way to allow
    it."""
    request = {
        "files": [{"path": "handler.py", "size": 2, "sha256": SHA256}],
        "manifest": 'schema = 1\n[runtime]\nengine = "python"\n[input.r]\nkind = "json"\n',
    }
    answer = await fake.admin("POST", "/functions/f/revisions", request)

    assert answer.status == 422
    assert answer.problem["detail"] == (
        "handler.py would run on the server: in a container under the driver docker, else with the"
        " rights of the server's user; pass --trust to allow it"
    )


async def test_a_handler_needs_more_than_the_scope_deploy(fake: ServingServer) -> None:
    """With handlers beside the server the scope deploy is 403 for one, even with trust.

    A model needs only that scope, and is refused here for its missing blob.
    """
    key = (await fake.admin("POST", "/keys", {"scopes": ["deploy"]})).json()
    deployer = Caller(fake.url, key["secret"], fake.session)
    handler = {
        "files": [{"path": "handler.py", "size": 2, "sha256": SHA256}],
        "manifest": 'schema = 1\n[runtime]\nengine = "python"\n[input.r]\nkind = "json"\n',
        "trust": True,
    }
    model = {"files": [{"path": "m.onnx", "size": 2, "sha256": SHA256}], "model": "m.onnx"}

    answer = await deployer.admin("POST", "/functions/f/revisions", handler)
    other = await deployer.admin("POST", "/functions/f/revisions", model)
    await fake.admin("DELETE", f"/keys/{key['id']}")

    assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")
    assert (
        "driver fake: this needs the scope admin, the key has deploy" in (answer.problem["detail"])
    )
    assert other.status == 422


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        ("schema = 1\nmodle = 'm.onnx'", "modle"),
        ("schema = 7\nmodel = 'm.onnx'", "7"),
        ("schema = 1\nmodel = 'm.onnx'\n[scaling]\nmin = -1", "scaling.min"),
        ("schema = [", "expected TOML"),
    ],
)
async def test_a_wrong_manifest_is_refused(fake: ServingServer, manifest: str, text: str) -> None:
    """A wrong manifest is 422 with the key or value at fault."""
    answer = await fake.try_deploy({"m.onnx": EMPTY}, name="f", manifest=manifest)

    assert (answer.status, answer.problem["code"]) == (422, "bad_manifest")
    assert text in answer.problem["detail"]


async def test_an_invalid_name_is_refused(fake: ServingServer) -> None:
    """An invalid name is 400 with the rules for names."""
    answer = await fake.admin("POST", "/functions/No%20Name/revisions", {"files": []})

    assert answer.status == 400
    assert "No Name" in answer.problem["detail"]


async def test_text_that_grows_in_its_reader_is_refused_before_it_is_read(
    server: ServingServer,
) -> None:
    """A key of thousands of parts, long numbers and deep nesting are refused by their place, also
    from a key of scope deploy; each would have taken seconds and gigabytes, or been a 500."""
    created = await server.admin("POST", "/keys", {"scopes": ["deploy"]})
    allowed = {"Authorization": f"Bearer {created.json()['secret']}"}
    path = "/admin/v1/functions/new/revisions"

    async def refused(**request: Any) -> tuple[int, str, str]:
        answer = await server.request("POST", path, {"files": [], **request}, allowed)
        return answer.status, answer.problem["code"], answer.problem["detail"]

    for text, said in (
        ("a." * 12_000 + "a = 1", "line 2: expected at most 32 levels, and 20 parts in a key"),
        ("a = " + "9" * 5000, "line 2: expected an integer of at most 20 digits, got one of 5000"),
        (
            "a = 1\n" * 10_001,
            "line 10001: expected at most 10000 parts of keys and tables, got more",
        ),
    ):
        status, code, detail = await refused(manifest=f"schema = 1\n{text}")
        assert (status, code) == (422, "bad_manifest")
        assert said in detail
    nested: Any = 1
    for _ in range(500):
        nested = [nested]
    status, code, detail = await refused(manifest="schema = 1", overrides={"env": nested})
    assert (status, code) == (400, "bad_request")
    assert detail.startswith("the deploy request cannot be read: Expected `")
    assert (await server.admin("GET", "/operations")).json()["items"][1:] == []


async def test_a_large_body_is_refused_before_a_function_wakes(server: ServingServer) -> None:
    """A body too large for the event loop is checked all the same: its error names the row, and no
    replica starts."""
    await server.admin("POST", "/functions/f/sleep")
    await server.until_pools(lambda: not server.bound())
    rows = [[1, 2, 3, 4]] * 30_000
    for place in (0, 30_000):
        body = {"inputs": {"x": [*rows[:place], [5], *rows[place:]]}}
        answer = await server.call("f", body)
        assert answer.status == 400, answer.body
        assert answer.problem["detail"].startswith("input 'x': expected FP32 of shape [-1, 4], got")
        assert server.bound() == []

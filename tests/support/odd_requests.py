"""Functions of every kind on one server, and odd values for whatever a request may contain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import msgspec

from gateway.openapi.routes import Route
from registry.catalog import Deployed
from registry.model.history import Arrivals
from runtime_image.contract.precision import Optimisation
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.caller import Answer
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.images import FakeImages, image
from tests.support.nouns import optimised
from tests.support.operator import MODEL
from tests.support.server import ServingServer

TENSOR: Final = TensorSpec("x", "FP32", (-1, 2))
SIGNATURE: Final = Signature("tensors", (TENSOR,), (TENSOR,))
IMAGE: Final = "registry.example/app:1"
SERVER: Final = "schema = 1\n[server]\n"
HANDLER: Final = b"def predict(inputs):\n    return inputs\n"
PYTHON: Final = 'schema = 1\n[runtime]\nengine = "python"\n[input.x]\nkind = "json"\n'
KINDS: Final[dict[str, tuple[dict[str, bytes], str | None]]] = {
    "model": ({"m.onnx": MODEL}, None),
    "precise": ({"m.onnx": MODEL}, 'schema = 1\n[runtime]\nengine = "auto"\n'),
    "handler": ({"handler.py": HANDLER}, PYTHON),
    "web": ({"app.py": b""}, f'{SERVER}command = "serve ${{PORT}}"\n[openai]\n'),
    "image": ({}, f'{SERVER}image = "{IMAGE}"\n'),
}
"""Files and function.toml by function, which has the name of its kind."""
NAMES: Final = (*KINDS, "model@1", "web@1", "web@9", "other", "removed")
"""What requests name: besides functions and revisions an alias, and a function that is gone."""
NUMBERS: Final = ("0", "-1", "1.5", "1e999", "NaN", "9" * 40, "1" + "0" * 4999)
TEXTS: Final = ("", "\0", "\ud800", "x" * 70_000, "../..", "модель ${PORT}")
VALUES: Final = (
    *NUMBERS,
    *map(json.dumps, TEXTS),
    *("null", "true", "[]", "{}", "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500),
)
"""JSON, some of it not accepted by every reader."""
MANIFESTS: Final = (
    f"schema = {'1' * 5000}",
    f"schema = 1\nscaling.max = {'9' * 4000}",
    f"schema = 1\na = {'[' * 500}{']' * 500}",
    f"schema = 1\n{'.'.join('a' * 500)} = 1",
    f"schema = 1\na = {'{b=' * 200}1{'}' * 200}",
    "schema = 1\n[scaling]\nidle_s = nan\nmin = -1",
    'schema = 1\n[server]\ncommand = "\\u0000 ${PORT}"',
    'schema = 1\n[server]\ncommand = "serve ${PORT}"\nport = 1e999',
)
BODIES: Final = (
    *(b"", b"{", b"\xff\xfe", b"[" * 2000, b'{"a":' * 2000, b'{"\\ud800":"\\ud800"}'),
    *map(str.encode, VALUES),
)


def driver_of_all(script: Script) -> FakeDriver:
    """Return a driver that also has the image of KINDS."""
    driver, images = FakeDriver(script), FakeImages()
    images.there[IMAGE] = image(1, 8080)
    driver.images = images
    return driver


async def deploy_all(server: ServingServer) -> None:
    """Deploy every function of NAMES."""
    for name, (files, manifest) in {**KINDS, "removed": KINDS["model"]}.items():
        if files:
            await server.deploy(files, name=name, manifest=manifest)
            continue
        body = {"files": [], "manifest": manifest}
        answer = await server.admin("POST", f"/functions/{name}/revisions", body)
        assert (await server.ended(answer.json())).json()["state"] == "done"
    catalog = server.server.store.catalog
    found = catalog.resolve("precise")
    assert found.profile is not None
    revision = replace(found.revision, optimise=Optimisation("auto", 0.01))
    profile = replace(found.profile, optimised=optimised(b"int8"))
    catalog.put(Deployed(found.function, revision, profile))
    for name in ("model", "web"):
        await call_before(server, name)
    assert (await server.admin("DELETE", "/functions/removed")).status == 200
    made = await server.admin("POST", "/aliases", {"function": "web", "alias": "other"})
    assert made.status == 201


async def call_before(server: ServingServer, name: str) -> None:
    """Record calls of a function in the minutes before, so that there is advice for it."""
    store = server.server.store
    found = store.catalog.resolve(name)
    minute = int(found.function.created_s) // 60 * 60
    for ago in (1, 2):
        store.history.record(Arrivals("default", name, minute - 60 * ago, 10))
    await store.history.flush()
    function = replace(found.function, created_s=minute - 600.0)
    store.catalog.put(Deployed(function, found.revision, found.profile))


async def send(
    server: ServingServer, route: Route, name: str, query: str, body: bytes | None, bearer: str
) -> Answer:
    """Send a request to a route, with `name` for every part of its path that varies."""
    path = re.sub(r"\{\w+\}", lambda _: quote(name, safe="@~%"), route.path)
    headers = {"Authorization": f"Bearer {bearer}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    return await server.request(route.method, path + query, body, headers)


def odd_queries(route: Route) -> Iterator[str]:
    """Yield queries with one odd value for each parameter of a route, and one that has it twice."""
    for one in route.parameters:
        if one.place == "query":
            for value in (*NUMBERS, *TEXTS):
                yield f"?{one.name}={quote(value[:5000].encode('utf-8', 'surrogatepass'))}"
            yield f"?{one.name}=1&{one.name}=2"


def odd_bodies(route: Route) -> Iterator[bytes]:
    """Yield odd bodies of a route, and for each member of what it takes one that is else usual."""
    if not route.request:
        return
    yield from BODIES
    for content in route.request:
        for kind in content.type if isinstance(content.type, tuple) else (content.type,):
            found = msgspec.inspect.type_info(kind) if kind is not None else None
            if isinstance(found, msgspec.inspect.StructType):
                for text in _members(found):
                    yield text.encode()


def _members(struct: msgspec.inspect.StructType) -> Iterator[str]:
    usual = {one.encode_name: _usual(one.type) for one in struct.fields if one.required}
    for one in struct.fields:
        for value in VALUES:
            changed = {**usual, one.encode_name: value}
            yield "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in changed.items()) + "}"


def _usual(kind: msgspec.inspect.Type) -> str:
    """Return JSON of a type that is required somewhere."""
    if isinstance(kind, msgspec.inspect.StrType):
        return '"model"'
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return "1"
    return "[]" if isinstance(kind, msgspec.inspect.ListType) else "{}"

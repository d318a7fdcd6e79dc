"""Tests of the descriptions of /v2 against its routes and real answers."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

from gateway.http.oip.routes import OipRoutes
from gateway.openapi.oip_routes import oip_routes
from gateway.settings import GatewaySettings
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support.described import check_answer, described_routes
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.server import serving

TENSOR = TensorSpec("x", "FP32", (-1, 2))
SIGNATURE = Signature("tensors", (TENSOR,), (TENSOR,))
VALUES = {"model": "f", "version": "1", "name": "r"}


def test_every_route_is_described() -> None:
    """The document has the routes below /v2, and no others."""
    invoker = MagicMock(settings=GatewaySettings())
    rows = OipRoutes(invoker, MagicMock(), MagicMock()).rows
    there = {f"{row.method} /v2{row.path}" for row in rows}

    assert {f"{one.method} {one.path}" for one in oip_routes()} == there


async def test_answers_are_as_described(tmp_path: Path) -> None:
    """Every route answers as the document says, for the admin, for a model that exists and for one
    that does not."""
    described = {key: one for key, one in described_routes().items() if " /v2" in key}
    driver = FakeDriver(Script(signature=SIGNATURE))
    async with serving(tmp_path, driver, standbys=0) as server:
        await server.deploy({"m.onnx": b"\x3a\x00"}, name="f")
        bearer = {"Authorization": f"Bearer {server.token}"}
        for key, route in described.items():
            for model in ("f", "nothing"):
                values = {**VALUES, "model": model}
                path = route.path.format(**values)
                body = {} if route.method == "POST" else None
                answer = await server.request(route.method, path, body, bearer)
                kind = answer.headers.get("Content-Type", "").partition(";")[0]
                check_answer(route, answer.status, kind, answer.body)
                is_found = answer.status == 200 or not key.startswith("GET /v2/models/{model}")
                assert is_found or model == "nothing", key

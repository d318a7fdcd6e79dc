"""Fixtures: a server over fake replicas with one function."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.fake_driver.driver import FakeDriver
from tests.support.operator import MODEL
from tests.support.server import ServingServer, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServingServer]:
    """Serve `digits`, deployed and cold."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        await server.deploy({"m.onnx": MODEL}, name="digits")
        await server.until_pools(lambda: not server.server.manager.replicas())
        yield server

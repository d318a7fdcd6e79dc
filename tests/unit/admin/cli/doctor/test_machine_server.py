from __future__ import annotations

import pytest

from admin.cli.doctor import machine
from admin.client.client import Client
from tests.support.admin_api import AdminApi, Canned


@pytest.mark.parametrize(
    ("canned", "level"),
    [
        (Canned({"status": "ok", "reasons": []}), "ok"),
        (Canned({"status": "degraded", "reasons": ["disk: full"]}), "warn"),
        (Canned({"title": "Shutting down"}, status=503), "fail"),
        (Canned(is_cut=True), "fail"),
    ],
)
def test_the_server_is_asked(api: AdminApi, canned: Canned, level: str) -> None:
    """A degraded server warns, one that refuses or is silent fails."""
    api.on("GET", "/readyz", canned)

    assert machine.server(Client(api.url)).level == level


@pytest.mark.parametrize(
    ("canned", "level"),
    [
        (Canned({"items": []}), "ok"),
        (Canned({"title": "A key is needed"}, status=401), "fail"),
        (Canned(is_cut=True), "warn"),
    ],
)
def test_access_is_tried(api: AdminApi, canned: Canned, level: str) -> None:
    """A key that opens nothing fails; without a server nothing is known."""
    api.on("GET", "/admin/v1/functions", canned)

    assert machine.access(Client(api.url)).level == level

"""The extra for gRPC: loaded only if its port is set, and named if it is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from admin.gateway_process import check_extras
from gateway.settings import GatewaySettings
from registry.errors import BadRequest


def test_a_server_without_a_port_does_not_load_grpc() -> None:
    """gRPC and protobuf cost a tenth of a second and 20 MiB, for nothing."""
    text = (
        "import sys, admin.serve, admin.compose, admin.workers.worker, admin.workers.supervisor\n"
        "print([name for name in sys.modules if name in ('grpc', 'google.protobuf')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_extra_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and comes only if the port is set."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    check_extras(GatewaySettings())
    with pytest.raises(BadRequest, match=r"pip install 'fngate\[grpc\]'"):
        check_extras(GatewaySettings(grpc_port=1))

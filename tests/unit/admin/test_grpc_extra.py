"""The extra for gRPC: loaded only if its port is set, and named if it is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata

import pytest

from admin.cli.doctor import machine
from admin.extras import fits
from admin.gateway_process import check_extras
from gateway.settings import GatewaySettings
from registry.errors import BadRequest


def test_a_server_without_a_port_does_not_load_grpc() -> None:
    """gRPC and protobuf cost a tenth of a second and 20 MiB, for nothing."""
    text = (
        "import sys, admin.serve, admin.compose, admin.workers.worker\n"
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
    with pytest.raises(BadRequest, match="make install EXTRAS=grpc"):
        check_extras(GatewaySettings(grpc_port=1))


@pytest.mark.parametrize(
    ("version", "needed", "is_fit"),
    [
        ("7.36.2", "<8.0.0,>=7.35.1", True),
        ("7.35.1", "<8.0.0,>=7.35.1", True),
        ("7.35", "<8.0.0,>=7.35.1", False),
        ("4.25.8", "<8.0.0,>=7.35.1", False),
        ("8.0", "<8.0.0,>=7.35.1", False),
        ("8.0.0rc1", "<9,>=8", True),
        ("4.25.8", "", True),
        ("unknown", ">=7", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, needed: str, is_fit: bool) -> None:
    """A version may have fewer parts than a bound, and a suffix."""
    assert fits(version, needed) is is_fit


def test_the_installed_packages_fit() -> None:
    """The packages of the development tools serve gRPC, and what they need of protobuf is known."""
    check_extras(GatewaySettings(grpc_port=1))
    (check,) = machine.grpc()
    assert (check.level, check.todo) == ("ok", "")


@pytest.mark.parametrize("found", ["4.25.8", "5.29.0", "99.0"])
def test_another_protobuf_is_named(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    """The error has the installed version, the needed ones and the remedy: generated code refuses
    an older protobuf by an error of its own. `fnctl doctor` says the same."""
    known = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: found if name == "protobuf" else known(name)
    )
    check_extras(GatewaySettings())
    with pytest.raises(BadRequest, match=rf"needs protobuf .*>=.*, installed is {found}: make"):
        check_extras(GatewaySettings(grpc_port=1))

    (check,) = machine.grpc()
    assert (check.level, check.todo) == ("warn", "make install EXTRAS=grpc")

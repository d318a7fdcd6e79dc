"""Tests of the gateway's settings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from gateway.settings import MIB, GatewaySettings


def test_the_defaults_are_those_of_the_contract() -> None:
    """The defaults are loopback, 256 MiB held, two retries, 30 s for a body."""
    settings = GatewaySettings()

    assert (settings.listen, settings.port, settings.public_hosts) == ("127.0.0.1", 8080, ())
    assert settings.held_bytes_max == 256 * MIB
    assert (settings.retries, settings.body_read_s) == (2, 30.0)


def test_settings_are_immutable() -> None:
    """Settings cannot be modified."""
    with pytest.raises(FrozenInstanceError):
        GatewaySettings().port = 1  # type: ignore[misc]  # the refusal is tested

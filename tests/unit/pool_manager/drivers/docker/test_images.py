"""What an image says about itself, as the engine shows it."""

from __future__ import annotations

import pytest

from pool_manager.drivers.docker.images import CONFIG_MAX, PORTS_MAX, found_image
from registry.errors import DriverError

ID = f"sha256:{1:064x}"


def ports_of(*names: str) -> tuple[int, ...]:
    """Return the ports of an image that exposes these."""
    config = {"ExposedPorts": {name: {} for name in names}}
    return found_image({"Id": ID, "Config": config}, "app").ports


def test_exposed_ports_are_those_of_tcp() -> None:
    """Sorted; a port without a protocol is one of TCP."""
    assert ports_of("9000/tcp", "80", "53/udp") == (80, 9000)


def test_what_is_no_port_is_none() -> None:
    """An image may name any text: EXPOSE is not checked by registries."""
    names = ("0", "65536/tcp", "00080", "-1", "8" * 5000, "8000-9000/tcp", "٨", "tcp", "")

    assert ports_of(*names) == ()


def test_few_ports_are_remembered() -> None:
    """An image may expose all of them."""
    assert len(ports_of(*map(str, range(1, 10_000)))) == PORTS_MAX


def test_a_configuration_without_end_is_refused() -> None:
    """The engine would repeat it in each list and event; the reference is named."""
    config = {"Labels": {"note": "x" * CONFIG_MAX}}

    with pytest.raises(DriverError, match=r"^the configuration of app has 10\d+ characters"):
        found_image({"Id": ID, "Config": config}, "app")


def test_an_image_without_a_configuration() -> None:
    """It has no ports and no volumes."""
    found = found_image({"Id": ID, "Config": None}, "app")

    assert (found.ports, found.volumes) == ((), ())

"""Which engines and images may be used."""

from __future__ import annotations

from typing import Any

import pytest

from pool_manager.drivers.docker.containers import check_image, check_users, maps_users
from registry.errors import DriverError
from runtime_image.contract.link import VERSION


def test_an_image_of_the_same_version() -> None:
    """An image with the server's link version is accepted."""
    check_image("fngate:cpu", "cpu", {"Config": {"Labels": {"fngate.link": str(VERSION)}}})


@pytest.mark.parametrize("inspected", [{}, {"Config": None}, {"Config": {"Labels": None}}])
def test_an_image_that_is_none_of_ours(inspected: dict[str, Any]) -> None:
    """An image without a link label is refused."""
    with pytest.raises(
        DriverError, match=r"debian is not a runtime image: .* fngate\.link; build it"
    ):
        check_image("debian", "cpu", inspected)


@pytest.mark.parametrize(("kind", "target"), [("cpu", "cpu"), ("cuda", "gpu")])
def test_an_image_of_another_version(kind: str, target: str) -> None:
    """An image of another link version is refused, with both versions and the command that builds
    the right one."""
    with pytest.raises(DriverError) as failed:
        check_image("fngate:x", kind, {"Config": {"Labels": {"fngate.link": "99"}}})

    assert failed.value.message == (
        f"image fngate:x speaks link version 99, this server speaks {VERSION};"
        f" build it: fnctl image build {target}"
    )


def test_an_engine_with_the_users_of_this_machine() -> None:
    """An engine without user mapping is accepted, whatever its other security options."""
    check_users({"SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"]})
    check_users({"SecurityOptions": None})


@pytest.mark.parametrize("option", ["rootless", "userns"])
def test_an_engine_with_other_users(option: str) -> None:
    """An engine that maps user ids is refused at the start, before any replica fails."""
    with pytest.raises(DriverError, match=rf"other ids .*\({option}\).* FN_DOCKER_HOST"):
        check_users({"SecurityOptions": ["name=seccomp,profile=builtin", f"name={option}"]})


@pytest.mark.parametrize(
    ("options", "is_so"),
    [
        (["name=userns"], True),
        (["name=seccomp,profile=builtin", "name=userns"], True),
        (["name=rootless"], False),
        (["name=rootless", "name=userns"], False),
        (["name=seccomp,profile=userns"], False),
        (None, False),
    ],
)
def test_root_of_a_container_is_another_user_with_userns_remap(
    options: list[str] | None, *, is_so: bool
) -> None:
    """In a rootless engine it is the user who runs the engine, who may be this server's."""
    assert maps_users({"SecurityOptions": options}) is is_so

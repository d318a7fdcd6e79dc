"""A whole build on a real engine, from a wheelhouse and without a network."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import APIClient

from admin.image.build import Built, build, check_filter, split_tag
from admin.image.context import ImageError, own_checkout, own_digest
from runtime_image.contract.link import VERSION
from tests.support import runtime_images

needs_engine = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def tag(docker_client: APIClient, built: Built) -> Iterator[str]:
    """A name that an image has already."""
    name = uuid.uuid4().hex
    docker_client.tag(built.id, "fngate-test", name)
    yield f"fngate-test:{name}"
    runtime_images.remove(docker_client, f"fngate-test:{name}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of its own, to break."""
    return runtime_images.light_checkout(tmp_path)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Libraries for it."""
    return runtime_images.light_wheelhouse(tmp_path / "wheels")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fngate-runtime:cpu", ("fngate-runtime", "cpu")),
        ("fngate-runtime", ("fngate-runtime", "latest")),
        ("host:5000/fngate", ("host:5000/fngate", "latest")),
        ("host:5000/fngate:1", ("host:5000/fngate", "1")),
    ],
)
def test_a_name_is_split_at_its_tag(name: str, parts: tuple[str, str]) -> None:
    """A registry's port is no tag."""
    assert split_tag(name) == parts


@pytest.mark.parametrize(
    ("through", "withheld", "text"),
    [
        (["io_uring_setup", "socket family 40"], [], "through: io_uring_setup, socket family 40"),
        ([], ["NETLINK_ROUTE"], "keeps back what replicas need: NETLINK_ROUTE"),
    ],
)
def test_a_filter_that_is_none_is_told(through: list[str], withheld: list[str], text: str) -> None:
    """By the calls that got through it, or did not."""
    check_filter([], [])

    with pytest.raises(ImageError, match=text):
        check_filter(through, withheld)


class TestOnAnEngine:
    """What needs one."""

    pytestmark = needs_engine

    def test_an_image_says_what_it_is(self, docker_client: APIClient, built: Built) -> None:
        """In its labels and in the result, and nothing nameless is left."""
        image = docker_client.inspect_image(built.tag)
        labels = image["Config"]["Labels"]

        assert (built.id, built.size_bytes) == (image["Id"], image["Size"])
        assert (built.kind, built.link, built.source) == ("cpu", VERSION, own_digest())
        assert labels["fngate.kind"] == "cpu"
        assert labels["fngate.link"] == str(VERSION)
        assert labels["fngate.version"] == built.version
        assert labels["fngate.source"] == own_digest()
        assert built.python.startswith("3.")
        constraints = (own_checkout() / "constraints.txt").read_text()
        assert f"onnxruntime=={built.onnxruntime}\n" in constraints
        assert runtime_images.leftovers(docker_client, labels["fngate.build"]) == 0

    def test_code_that_does_not_start_gets_no_name(
        self, docker_client: APIClient, built: Built, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The trial start fails: the tag stays where it was, and the new image is gone."""
        (checkout / "runtime_image" / "engines" / "preload.py").write_text("1 / 0\n")

        order = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        with pytest.raises(ImageError, match="does not start, exit code 1") as caught:
            build(order, lambda _: None)

        assert "ZeroDivisionError" in caught.value.message
        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, order.id) == 0

    def test_an_image_without_the_filter_gets_no_name(
        self, docker_client: APIClient, built: Built, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The trial start makes each refused call: here the engine's own filter refuses some."""
        (checkout / "runtime_image" / "seccomp" / "install.py").write_text(
            "def install() -> None: ...\n"
        )

        with pytest.raises(ImageError, match=r"lets system calls through: .*netlink protocol"):
            build(runtime_images.order(tag, checkout=checkout, wheelhouse=wheels), lambda _: None)

        assert docker_client.inspect_image(tag)["Id"] == built.id

    def test_an_incomplete_wheelhouse_is_told(
        self, docker_client: APIClient, built: Built, tag: str, tmp_path: Path
    ) -> None:
        """pip's last lines are shown; the tag stays where it was, and nothing is left."""
        for wheel in Path(runtime_images.given("FN_TEST_WHEELHOUSE")).glob("*.whl"):
            if not wheel.name.lower().startswith("pillow"):
                (tmp_path / wheel.name).symlink_to(wheel)
        order = runtime_images.order(tag, wheelhouse=tmp_path)

        with pytest.raises(ImageError, match="the wheelhouse is not complete") as caught:
            build(order, lambda _: None)

        assert "pillow" in caught.value.message
        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, order.id) == 0

    @pytest.mark.parametrize("instruction", ["COPY constraints.txt", "RUN set -eu; pip="])
    def test_an_interrupted_build_leaves_nothing(
        self, docker_client: APIClient, built: Built, tag: str, wheels: Path, instruction: str
    ) -> None:
        """Whether the engine copies or runs something just then."""

        def interrupt(text: str) -> None:
            if instruction in text:
                signal.raise_signal(signal.SIGINT)

        order = runtime_images.order(tag, wheelhouse=wheels)
        with pytest.raises(KeyboardInterrupt):
            build(order, interrupt)

        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, order.id) == 0

    def test_a_new_image_takes_the_name(
        self, docker_client: APIClient, built: Built, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The one that had it is told, and stays where something else needs it."""
        (checkout / "runtime_image" / "new.py").touch()
        order = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        made = build(order, lambda _: None)

        assert made.replaced == built.id
        assert made.source != built.source
        assert docker_client.inspect_image(tag)["Id"] == made.id
        assert docker_client.inspect_image(built.tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, order.id) == 0

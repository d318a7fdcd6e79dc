from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import APIClient

from admin.image.build import BuiltImage, Interrupt, Progress, build, check_filter, split_tag
from admin.image.context import ImageError, own_digest
from runtime_image.contract.link import VERSION
from tests.support import runtime_images

needs_engine = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def tag(docker_client: APIClient, built: BuiltImage) -> Iterator[str]:
    """Create a tag that already names an image."""
    name = uuid.uuid4().hex
    docker_client.tag(built.id, "fngate-test", name)
    yield f"fngate-test:{name}"
    runtime_images.remove(docker_client, f"fngate-test:{name}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy a checkout that a test may break."""
    return runtime_images.light_checkout(tmp_path)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Provide the wheels that the image needs."""
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
    """A name is split at its tag; the port of a registry is not a tag."""
    assert split_tag(name) == parts


@pytest.mark.parametrize(
    ("through", "withheld", "text"),
    [
        (
            ["io_uring_setup", "socket family 40"],
            [],
            "forbidden system calls: io_uring_setup, socket family 40",
        ),
        ([], ["NETLINK_ROUTE"], "refuses system calls of replicas: NETLINK_ROUTE"),
    ],
)
def test_a_missing_filter_is_reported(through: list[str], withheld: list[str], text: str) -> None:
    """A missing seccomp filter is reported by the system calls that succeeded."""
    check_filter([], [])

    with pytest.raises(ImageError, match=text):
        check_filter(through, withheld)


class TestOnAnEngine:
    """Tests that need an engine."""

    pytestmark = needs_engine

    def test_an_image_says_what_it_is(self, docker_client: APIClient, built: BuiltImage) -> None:
        """An image describes itself in its labels, as the result does, and no unnamed image is
        left."""
        image = docker_client.inspect_image(built.tag)
        labels = image["Config"]["Labels"]

        assert (built.id, built.size_bytes) == (image["Id"], image["Size"])
        assert (built.kind, built.link, built.source) == ("cpu", VERSION, own_digest())
        assert labels["fngate.kind"] == "cpu"
        assert labels["fngate.link"] == str(VERSION)
        assert labels["fngate.version"] == built.version
        assert labels["fngate.source"] == own_digest()
        assert built.python.startswith("3.")
        assert built.onnxruntime == runtime_images.light_versions("cpu")["onnxruntime"]
        assert runtime_images.leftovers(docker_client, labels["fngate.build"]) == 0

    def test_code_that_does_not_start_gets_no_name(
        self, docker_client: APIClient, built: BuiltImage, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """If the trial start fails, the tag keeps its image and the new image is removed."""
        (checkout / "runtime_image" / "engines" / "loading.py").write_text("1 / 0\n")

        request = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        with pytest.raises(ImageError, match="does not start, exit code 1") as caught:
            build(request, lambda _: None)

        assert "ZeroDivisionError" in caught.value.message
        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0

    def test_an_image_without_the_filter_gets_no_name(
        self, docker_client: APIClient, built: BuiltImage, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The trial start finds that an image without the seccomp filter lets system calls through;
        the image gets no tag."""
        (checkout / "runtime_image" / "seccomp" / "install.py").write_text(
            "def install() -> None: ...\n"
        )

        with pytest.raises(ImageError, match=r"allows forbidden system calls: .*netlink protocol"):
            build(runtime_images.order(tag, checkout=checkout, wheelhouse=wheels), lambda _: None)

        assert docker_client.inspect_image(tag)["Id"] == built.id

    def test_an_incomplete_wheelhouse_is_told(
        self, docker_client: APIClient, built: BuiltImage, tag: str, tmp_path: Path
    ) -> None:
        """A missing wheel fails the build with pip's last lines; the tag keeps its image, and
        nothing is left."""
        for wheel in Path(runtime_images.given("FN_TEST_WHEELHOUSE")).glob("*.whl"):
            if not wheel.name.lower().startswith("pillow"):
                (tmp_path / wheel.name).symlink_to(wheel)
        request = runtime_images.order(tag, wheelhouse=tmp_path)

        with pytest.raises(ImageError, match="the wheelhouse is incomplete") as caught:
            build(request, lambda _: None)

        assert "pillow" in caught.value.message
        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0

    def test_another_wheel_of_a_version_is_told(
        self, docker_client: APIClient, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """A wheel with another hash than the locked one ends the build, which leaves nothing."""
        [wheel] = wheels.glob("pillow-*.whl")
        wheel.write_bytes(runtime_images.light_wheel("pillow", "0.0"))
        request = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        with pytest.raises(ImageError, match=r"is not the one of requirements\.lock") as caught:
            build(request, lambda _: None)

        assert "pillow" in caught.value.message
        assert runtime_images.leftovers(docker_client, request.id) == 0

    @pytest.mark.parametrize("instruction", ["COPY requirements.lock", "RUN set -eu; pip="])
    def test_an_interrupted_build_leaves_nothing(
        self, docker_client: APIClient, built: BuiltImage, tag: str, wheels: Path, instruction: str
    ) -> None:
        """Ctrl-C during a COPY or a RUN leaves nothing behind."""

        def interrupt(text: str) -> None:
            if instruction in text:
                signal.raise_signal(signal.SIGINT)

        request = runtime_images.order(tag, wheelhouse=wheels)
        with pytest.raises(KeyboardInterrupt):
            build(request, interrupt)

        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0

    def test_a_new_image_takes_the_name(
        self, docker_client: APIClient, built: BuiltImage, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The new image takes the tag; the replaced one is reported and kept if something else
        needs it."""
        (checkout / "runtime_image" / "new.py").touch()
        request = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        made = build(request, lambda _: None)

        assert made.replaced == built.id
        assert made.source != built.source
        assert docker_client.inspect_image(tag)["Id"] == made.id
        assert docker_client.inspect_image(built.tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0


def press(times: int, said: list[str]) -> None:
    """Press Ctrl-C this often within a block; the block hurries a step in between."""
    with Interrupt(lambda: said.append("hurry")) as interrupt:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        said.append(f"wanted: {interrupt.is_wanted}")


def fail(times: int) -> None:
    """Fail in a block after pressing Ctrl-C this often."""
    with Interrupt(lambda: None):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("killed")


def test_the_first_is_noted_and_raised_at_the_end() -> None:
    """The first Ctrl-C lets the block go on, hurries steps that can be hurried, and raises
    KeyboardInterrupt at the end."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(1, said)

    assert said == ["hurry", "wanted: True"]


def test_the_second_does_not_wait() -> None:
    """The second Ctrl-C interrupts at once."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(2, said)

    assert said == ["hurry"]


def test_the_error_of_a_hurried_step_is_the_cause() -> None:
    """The error of a hurried step is only the cause of the KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt) as caught:
        fail(1)

    assert isinstance(caught.value.__cause__, ValueError)


def test_without_ctrl_c_nothing_changes() -> None:
    """Without Ctrl-C errors pass unchanged, and the earlier handler is restored."""
    before = signal.getsignal(signal.SIGINT)
    said: list[str] = []

    press(0, said)
    with pytest.raises(ValueError, match="killed"):
        fail(0)

    assert said == ["wanted: False"]
    assert signal.getsignal(signal.SIGINT) is before


RUN = "RUN set -eu;     pip install -r cpu.txt"
BEGINNING = [
    {"stream": "Step 1/33 : ARG BASE=python:3.11-slim"},
    {"stream": "\n"},
    {"stream": "Step 2/33 : FROM ${BASE} AS libraries"},
    {"stream": "\n"},
    {"stream": " ---> 792490182574\n"},
    {"stream": 'Step 4/33 : LABEL fngate.build="${BUILD}"'},
    {"stream": "\n"},
    {"stream": " ---> Running in 94e0cd7cdde1\n"},
    {"stream": "Removing intermediate container 94e0cd7cdde1\n"},
    {"stream": " ---> c9e1cce480d8\n"},
    {"stream": "Step 7/33 : COPY requirements.lock wheelhous[e] ./"},
    {"stream": "\n"},
    {"stream": " ---> a18f08aef95c\n"},
    {"stream": f"Step 10/33 : {RUN}"},
    {"stream": "\n"},
    {"stream": " ---> Running in 26c8e50bad16\n"},
    {"stream": "Looking in links: .\n"},
    {"stream": "Processing ./numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl\n"},
]
END = [
    {"stream": "Removing intermediate container 26c8e50bad16\n"},
    {"stream": " ---> e7e869b9ccdd\n"},
    {"aux": {"ID": "sha256:e7e869b9ccdd"}},
    {"stream": "Successfully built e7e869b9ccdd\n"},
]
NO_PILLOW = [
    {
        "stream": "\u001b[91mERROR: Cannot install pillow because these package versions have"
        " conflicting dependencies.\n\u001b[0m"
    },
    {
        "stream": "\nAdditionally, some packages in these conflicts have no matching"
        " distributions available for your environment:\n    pillow\n\n"
    },
    {"stream": "Removing intermediate container 26c8e50bad16\n"},
]
FAILED = f"The command '/bin/sh -c {RUN}' returned a non-zero code: 1"


def error(text: str) -> dict[str, Any]:
    return {"errorDetail": {"code": 1, "message": text}, "error": text}


def shown(progress: Progress, messages: list[dict[str, Any]]) -> list[str]:
    return [line for message in messages if (line := progress.feed(message))]


def failure(*messages: dict[str, Any]) -> ImageError:
    with pytest.raises(ImageError) as caught:
        shown(Progress(), [*messages])
    return caught.value


def test_steps_that_take_time_are_shown() -> None:
    """Every FROM, COPY and RUN is a line; instant instructions are not shown."""
    progress = Progress()

    assert shown(progress, [*BEGINNING, *END]) == [
        "step 2/33 FROM ${BASE} AS libraries",
        "step 7/33 COPY requirements.lock wheelhous[e] ./",
        "step 10/33 RUN set -eu; pip install -r cpu.txt",
    ]
    assert progress.image == "sha256:e7e869b9ccdd"


def test_a_long_instruction_is_cut() -> None:
    """A long instruction is cut to one line."""
    [line] = shown(Progress(), [{"stream": "Step 3/4 : RUN " + "x" * 500}])

    assert len(line) < 80
    assert line.endswith("…")


def test_a_copy_cannot_be_broken_off() -> None:
    """A COPY cannot be interrupted before the next step begins."""
    progress = Progress()

    shown(progress, BEGINNING[:13])
    in_copy = progress.may_break_off
    shown(progress, BEGINNING[13:])

    assert (in_copy, progress.may_break_off) == (False, True)


def test_a_failed_step_shows_its_last_lines() -> None:
    """A failed step is reported with its exit code and its last lines, without colours."""
    failed = failure(*BEGINNING, {"stream": "\u001b[91mboom\n\u001b[0m"}, error(FAILED))

    assert failed.message.split("\n") == [
        "step 10/33 RUN set -eu; pip install -r cpu.txt failed: non-zero code: 1; its last lines:",
        "    Looking in links: .",
        "    Processing ./numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl",
        "    boom",
    ]


def test_a_failed_copy_is_told() -> None:
    """A failed COPY is reported with the engine's reason, not with the output of an earlier
    step."""
    earlier = {"stream": "Step 6/33 : RUN true"}, {"stream": "all is well\n"}
    failed = failure(
        *earlier, *BEGINNING[10:12], error("COPY failed: stat nope: file does not exist")
    )

    assert failed.message == (
        "step 7/33 COPY requirements.lock wheelhous[e] ./ failed:"
        " COPY failed: stat nope: file does not exist"
    )


def test_a_wheelhouse_without_a_wheel_is_told() -> None:
    """A missing wheel is reported by name, with the option to download it."""
    failed = failure(*BEGINNING, *NO_PILLOW, error(FAILED))

    assert failed.message.startswith("the wheelhouse is incomplete:")
    assert failed.message.endswith("    pillow")
    assert "omit --wheelhouse" in failed.__notes__[0]


@pytest.mark.parametrize(
    "messages",
    [
        [error("write /var/lib/docker/tmp/x: no space left on device")],
        [{"stream": "OSError: [Errno 28] No space left on device\n"}, error(FAILED)],
    ],
)
def test_a_full_disk_is_told(messages: list[dict[str, Any]]) -> None:
    """A full disk is reported, whether the engine or a step found it."""
    failed = failure(*BEGINNING, *messages)

    assert failed.message.startswith("the disk is full: ")
    assert failed.__notes__ == ["docker system prune"]


def test_an_end_without_a_result_is_a_failure() -> None:
    """A connection that ends without a result is a failure of the current step."""
    progress = Progress()
    shown(progress, BEGINNING[:4])

    assert progress.failure("no result").message == (
        "step 2/33 FROM ${BASE} AS libraries failed: no result"
    )

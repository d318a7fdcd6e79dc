from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker import APIClient

from admin.image.build import BuiltImage, Interrupt, Progress, build, check_filter, split_tag
from admin.image.context import ImageError, own_checkout, own_digest
from runtime_image.contract.link import VERSION
from tests.support import runtime_images

needs_engine = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def tag(docker_client: APIClient, built: BuiltImage) -> Iterator[str]:
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
        (
            ["io_uring_setup", "socket family 40"],
            [],
            "forbidden system calls: io_uring_setup, socket family 40",
        ),
        ([], ["NETLINK_ROUTE"], "refuses system calls of replicas: NETLINK_ROUTE"),
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

    def test_an_image_says_what_it_is(self, docker_client: APIClient, built: BuiltImage) -> None:
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
        self, docker_client: APIClient, built: BuiltImage, tag: str, checkout: Path, wheels: Path
    ) -> None:
        """The trial start fails: the tag stays where it was, and the new image is gone."""
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
        """The trial start makes each refused call: here the engine's own filter refuses some."""
        (checkout / "runtime_image" / "seccomp" / "install.py").write_text(
            "def install() -> None: ...\n"
        )

        with pytest.raises(ImageError, match=r"allows forbidden system calls: .*netlink protocol"):
            build(runtime_images.order(tag, checkout=checkout, wheelhouse=wheels), lambda _: None)

        assert docker_client.inspect_image(tag)["Id"] == built.id

    def test_an_incomplete_wheelhouse_is_told(
        self, docker_client: APIClient, built: BuiltImage, tag: str, tmp_path: Path
    ) -> None:
        """pip's last lines are shown; the tag stays where it was, and nothing is left."""
        for wheel in Path(runtime_images.given("FN_TEST_WHEELHOUSE")).glob("*.whl"):
            if not wheel.name.lower().startswith("pillow"):
                (tmp_path / wheel.name).symlink_to(wheel)
        request = runtime_images.order(tag, wheelhouse=tmp_path)

        with pytest.raises(ImageError, match="the wheelhouse is incomplete") as caught:
            build(request, lambda _: None)

        assert "pillow" in caught.value.message
        assert docker_client.inspect_image(tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0

    @pytest.mark.parametrize("instruction", ["COPY constraints.txt", "RUN set -eu; pip="])
    def test_an_interrupted_build_leaves_nothing(
        self, docker_client: APIClient, built: BuiltImage, tag: str, wheels: Path, instruction: str
    ) -> None:
        """Whether the engine copies or runs something just then."""

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
        """The one that had it is told, and stays where something else needs it."""
        (checkout / "runtime_image" / "new.py").touch()
        request = runtime_images.order(tag, checkout=checkout, wheelhouse=wheels)

        made = build(request, lambda _: None)

        assert made.replaced == built.id
        assert made.source != built.source
        assert docker_client.inspect_image(tag)["Id"] == made.id
        assert docker_client.inspect_image(built.tag)["Id"] == built.id
        assert runtime_images.leftovers(docker_client, request.id) == 0


def press(times: int, said: list[str]) -> None:
    """Ctrl-C so often within a block, which says what it gets to."""
    with Interrupt(lambda: said.append("hurry")) as interrupt:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        said.append(f"wanted: {interrupt.is_wanted}")


def fail(times: int) -> None:
    """A block that fails after Ctrl-C was pressed so often."""
    with Interrupt(lambda: None):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("killed")


def test_the_first_is_noted_and_raised_at_the_end() -> None:
    """The block goes on, what can be hurried is hurried, and the end is an interruption."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(1, said)

    assert said == ["hurry", "wanted: True"]


def test_the_second_does_not_wait() -> None:
    """Whoever insists leaves at once."""
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        press(2, said)

    assert said == ["hurry"]


def test_what_a_hurried_step_fails_with_is_no_failure() -> None:
    """Its error is only the cause of the interruption."""
    with pytest.raises(KeyboardInterrupt) as caught:
        fail(1)

    assert isinstance(caught.value.__cause__, ValueError)


def test_without_ctrl_c_nothing_changes() -> None:
    """Errors pass, and the handler is the one from before."""
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
    {"stream": "Step 7/33 : COPY constraints.txt wheelhous[e] ./"},
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
    """Every FROM, COPY and RUN is a line; what is done in a moment is not."""
    progress = Progress()

    assert shown(progress, [*BEGINNING, *END]) == [
        "step 2/33 FROM ${BASE} AS libraries",
        "step 7/33 COPY constraints.txt wheelhous[e] ./",
        "step 10/33 RUN set -eu; pip install -r cpu.txt",
    ]
    assert progress.image == "sha256:e7e869b9ccdd"


def test_a_long_instruction_is_cut() -> None:
    """A step is one line of a terminal."""
    [line] = shown(Progress(), [{"stream": "Step 3/4 : RUN " + "x" * 500}])

    assert len(line) < 80
    assert line.endswith("…")


def test_a_copy_cannot_be_broken_off() -> None:
    """Until the next step begins."""
    progress = Progress()

    shown(progress, BEGINNING[:13])
    in_copy = progress.may_break_off
    shown(progress, BEGINNING[13:])

    assert (in_copy, progress.may_break_off) == (False, True)


def test_a_failed_step_shows_its_last_lines() -> None:
    """The failure names the step and the exit code, and what was said, without colours."""
    failed = failure(*BEGINNING, {"stream": "\u001b[91mboom\n\u001b[0m"}, error(FAILED))

    assert failed.message.split("\n") == [
        "step 10/33 RUN set -eu; pip install -r cpu.txt failed: non-zero code: 1; its last lines:",
        "    Looking in links: .",
        "    Processing ./numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl",
        "    boom",
    ]


def test_a_failed_copy_is_told() -> None:
    """What the engine itself says is the reason; what an earlier step printed is not."""
    earlier = {"stream": "Step 6/33 : RUN true"}, {"stream": "all is well\n"}
    failed = failure(
        *earlier, *BEGINNING[10:12], error("COPY failed: stat nope: file does not exist")
    )

    assert failed.message == (
        "step 7/33 COPY constraints.txt wheelhous[e] ./ failed:"
        " COPY failed: stat nope: file does not exist"
    )


def test_a_wheelhouse_without_a_wheel_is_told() -> None:
    """What pip misses is named, and that it can be downloaded."""
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
    """Whether the engine or a step ran out of it."""
    failed = failure(*BEGINNING, *messages)

    assert failed.message.startswith("the disk is full: ")
    assert failed.__notes__ == ["docker system prune"]


def test_an_end_without_a_result_is_a_failure() -> None:
    """A connection that just ends is told of the step it ended in."""
    progress = Progress()
    shown(progress, BEGINNING[:4])

    assert progress.failure("no result").message == (
        "step 2/33 FROM ${BASE} AS libraries failed: no result"
    )

"""What an engine 20.10 said while it built, as it came."""

from __future__ import annotations

from typing import Any

import pytest

from admin.image.build import Progress
from admin.image.context import ImageError

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

    assert failed.message.startswith("the wheelhouse is not complete:")
    assert failed.message.endswith("    pillow")
    assert "leave --wheelhouse away" in failed.__notes__[0]


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

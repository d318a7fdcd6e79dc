"""Tests of the programs of a build: bounded, clean, ended with their children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
from pathlib import Path

import pytest

from environments.programs import (
    OUTPUT_MAX,
    TEXT_MAX,
    Ended,
    Limits,
    Program,
    Progress,
    Work,
    WorkCancelled,
    run,
)
from registry.errors import EnvironmentRefused


def python(
    code: str, folder: Path, *, limits: Limits | None = None, work: Work | None = None
) -> Ended:
    program = Program([Path(sys.executable).resolve(), "-I", "-S", "-c", code], folder)
    return run(program, limits or Limits(30), work or Work(), "load")


def test_a_program_gets_a_clean_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the server, no descriptor, no input, and a folder of its own."""
    monkeypatch.setenv("UV_INDEX_URL", "https://evil.example")
    monkeypatch.setenv("PIP_INDEX_URL", "https://evil.example")
    monkeypatch.setenv("PYTHONPATH", "/evil")
    readable, writable = os.pipe()
    os.set_inheritable(readable, True)
    code = "import os, sys\nprint(sorted(os.environ), sys.stdin.read() == '', os.getcwd())\n"
    code += "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"

    ended = python(code, tmp_path)

    os.close(readable)
    os.close(writable)
    assert ended.out.decode().splitlines() == [
        f"['HOME', 'LANG', 'PATH', 'TMPDIR'] True {tmp_path}",
        "[0, 1, 2]",
    ]


def test_codes_and_texts_are_returned(tmp_path: Path) -> None:
    """Of a long text begin and end are kept."""
    code = f"import sys\nsys.stderr.write('begin' + 'x' * {TEXT_MAX * 3} + 'end')\nsys.exit(3)"

    ended = python(code, tmp_path)

    assert (ended.code, len(ended.text)) == (3, TEXT_MAX)
    assert ended.text.startswith("beginx")
    assert ended.text.endswith("xend")


def test_output_is_bounded(tmp_path: Path) -> None:
    """A program that writes without end has no result, and its bytes are not kept."""
    code = f"import sys\nsys.stdout.write('x' * {OUTPUT_MAX + 1})"

    with pytest.raises(EnvironmentRefused, match="expected at most"):
        python(code, tmp_path)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_program_is_ended_with_its_children(tmp_path: Path, is_late: bool) -> None:
    """At a cancellation and at a deadline; a child that keeps the pipes open is no obstacle."""
    code = "import fcntl, os, time\nheld = open('held', 'w')\nfcntl.flock(held, fcntl.LOCK_EX)\n"
    code += "os.fork()\nopen(f'pid{os.getpid()}', 'w').close()\ntime.sleep(1000)"
    work, ended = Work(), threading.Event()

    def cancel() -> None:
        """Cancel the work once both processes run."""
        while len(os.listdir(tmp_path)) < 3 and not ended.wait(0.01):
            pass
        work.cancelled.set()

    expected: type[Exception] = EnvironmentRefused if is_late else WorkCancelled
    limits = Limits(0.5 if is_late else 30)

    watching = threading.Thread(target=cancel)
    watching.start()
    try:
        with pytest.raises(expected):
            python(code, tmp_path, limits=limits, work=None if is_late else work)
    finally:
        ended.set()
        watching.join()
    with (tmp_path / "held").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # until both have ended


def test_a_child_that_stays_is_ended(tmp_path: Path) -> None:
    """The program has ended, its child has not: nobody waits for it."""
    code = "import os, time\nif not os.fork(): time.sleep(1000)\nprint('done')"

    assert python(code, tmp_path).out == b"done\n"


def test_what_is_written_is_bounded(tmp_path: Path) -> None:
    """By all files together while it runs, and by each file at once."""
    limits = Limits(30, 1_000_000)
    many = "import time\nfor n in range(100): open(str(n), 'wb').write(b'x' * 50_000)\n"

    with pytest.raises(EnvironmentRefused, match="MiB written"):
        python(many + "time.sleep(1000)", tmp_path, limits=limits)
    with contextlib.suppress(EnvironmentRefused):
        python("open('one', 'wb').write(b'x' * 2_000_000)", tmp_path, limits=limits)
    assert (tmp_path / "one").stat().st_size <= 1_000_000


def test_progress_is_told(tmp_path: Path) -> None:
    """Bytes that were written, while it runs."""
    told: list[Progress] = []
    work = Work()

    def tell(step: Progress) -> None:
        told.append(step)
        if step.done > 500_000:
            (tmp_path / "seen").touch()

    work.told = tell
    code = "import os, time\nopen('a', 'wb').write(b'x' * 600_000)\n"
    code += "while not os.path.exists('seen'): time.sleep(0.01)"

    python(code, tmp_path, work=work)

    assert told[0] == Progress("load")
    assert told[-1].done > 500_000


def test_a_program_that_is_absent(tmp_path: Path) -> None:
    """It is an exit code with a text, as any other failure."""
    ended = run(Program(["/nowhere/uv"], tmp_path), Limits(30), Work())

    assert ended.code
    assert "No such file" in ended.text

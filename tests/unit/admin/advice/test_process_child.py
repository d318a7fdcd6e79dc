"""The process that works an advice out."""

from __future__ import annotations

import signal
import subprocess
import sys

import msgspec

from admin.advice.advice import Row, advise
from admin.advice.process import LOWEST
from tests.unit.admin.advice.test_advice_rows import CASE

MODULE = "admin.advice.process"


def test_a_case_in_and_its_rows_out() -> None:
    """What comes back is what would have been worked out here."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE], input=msgspec.json.encode(CASE), capture_output=True
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert msgspec.json.decode(done.stdout, type=list[Row]) == advise(CASE)


def test_it_leaves_the_processors_to_others() -> None:
    """Before it reads a word it has the lowest priority there is."""
    text = f"import os, sys; from {MODULE} import main; main(); print(os.nice(0), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", text], input=msgspec.json.encode(CASE), capture_output=True
    )

    assert done.stderr == f"{LOWEST}\n".encode()


def test_it_ends_by_itself() -> None:
    """Also where the server that would end it was killed."""
    text = (
        "import signal; set_alarm = signal.alarm; signal.alarm = lambda _: set_alarm(1);"
        f"from {MODULE} import main; main()"
    )
    # Its standard input stays open, so it waits for ever.
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) as child:
        code = child.wait(20)

    assert code == -signal.SIGALRM


def test_what_is_no_case_is_an_error() -> None:
    """Nobody else writes to it, so it just fails."""
    done = subprocess.run([sys.executable, "-m", MODULE], input=b"{}", capture_output=True)

    assert done.returncode == 1
    assert b"from_s" in done.stderr

"""Tests of the leak check: it reports every leak, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.leaks import Leaks

ROOT = Path(__file__).parents[3]
SETTINGS = f"""
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
pythonpath = {ROOT}
"""
SUITE = '''
import asyncio, os, socket, subprocess, threading
import pytest, uvloop
from hypothesis import given, settings, strategies
from concurrent.futures import ThreadPoolExecutor

kept = []
over = threading.Event()

def keep(thing):
    kept.append(thing)
    return thing

def child():
    """Ends by itself when this process does."""
    return keep(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

def forever():
    return keep(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))

@pytest.fixture
async def untidy():
    forever()
    yield

@pytest.fixture
async def tidy():
    task = forever()
    yield
    task.cancel()

@pytest.fixture(scope="module", autouse=True)
def session_wide():
    process, end = child(), keep(socket.socket())
    yield
    over.set()
    for process in (thing for thing in kept if isinstance(thing, subprocess.Popen)):
        process.communicate()

async def test_leaks_task(): forever()
def test_leaks_task_of_a_fixture(untidy): pass
@settings(max_examples=1, database=None)
@given(strategies.just(1))
async def test_leaks_task_in_a_property(one): forever()
def test_leaks_thread(): threading.Thread(target=over.wait, name="forgotten").start()
def test_leaks_process(): child()
def test_leaks_zombie():
    process = child()
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
def test_leaks_socket(): keep(socket.socket())
def test_leaks_pipe(): keep(os.pipe())
def test_leaks_file(tmp_path): keep(open(tmp_path / "forgotten", "w"))
def test_leaks_loop(): keep(asyncio.new_event_loop())
def test_leaks_other_than_excluded(leaks):
    leaks.exclude("pipe", reason="to show that the socket is still seen")
    keep(socket.socket())

def test_clean(): pass
async def test_clean_async(tidy):
    await asyncio.to_thread(int)
    task = asyncio.create_task(asyncio.sleep(0))
    task.cancel()
def test_clean_uvloop(): uvloop.run(asyncio.sleep(0))
def test_clean_excluded(leaks):
    leaks.exclude("socket", reason="to show that it can be done")
    keep(socket.socket())
def test_clean_all_closed(tmp_path):
    with socket.socket(), open(tmp_path / "file", "w"), ThreadPoolExecutor(1) as pool:
        pool.submit(int)
    subprocess.run(["true"], check=True)
'''
LEAKING = {
    "task": "task .*'forgotten'",
    "task_of_a_fixture": "task .*'forgotten'",
    "task_in_a_property": "task .*'forgotten'",
    "thread": "thread forgotten",
    "process": r"process \d+: cat",
    "zombie": r"process \d+: cat",
    "socket": r"descriptor \d+: socket",
    "pipe": r"descriptor \d+: pipe",
    "file": r"descriptor \d+: .*/forgotten",
    "loop": r"descriptor \d+: anon_inode:\[eventpoll\]",
    "other_than_excluded": r"descriptor \d+: socket",
}
CLEAN = ("clean", "clean_async", "clean_uvloop", "clean_excluded", "clean_all_closed")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Output of pytest for a suite of leaking and clean tests."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_suite.py").write_text(SUITE)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "left"), LEAKING.items())
def test_a_leak_fails_its_test(name: str, left: str, report: str) -> None:
    """A leaking test gets an error that names the leak."""
    title = f"ERROR at teardown of test_leaks_{name} _"
    said = report.partition(title)[2].partition("\n____")[0]

    assert re.search(left, said), report


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_test_passes(name: str, report: str) -> None:
    """A test that closes its resources, or excludes them with a reason, passes."""
    assert f"PASSED test_suite.py::test_{name}\n" in report, report
    assert f"teardown of test_{name} _" not in report, report


def test_a_leak_is_reported_for_its_own_test_only(report: str) -> None:
    """A leak of one test, or a resource of a wider fixture, fails no other test."""
    assert report.count("ERROR test_suite.py") == len(LEAKING), report


@pytest.mark.parametrize(("text", "reason"), [("", "why"), ("socket", "")])
def test_an_exclusion_needs_a_reason(text: str, reason: str, leaks: Leaks) -> None:
    """An exclusion needs a text and a reason."""
    with pytest.raises(ValueError, match="expected a text and a reason"):
        leaks.exclude(text, reason=reason)

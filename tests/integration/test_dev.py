"""`fnctl dev` as a real process: its packages, its runner, its restarts, its end."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.cli.verbs.init import Template, write_template
from environments.trees import remove_tree
from tests.support.dev_run import WAIT_S, call, dev_run, real_index
from tests.support.package_index import PackageIndex

CHILD = """
import os, subprocess
def load(ctx):
    return [os.getpid(), subprocess.Popen(["sleep", "1000"]).pid]
def predict(*, ctx):
    return {"pids": ctx.state, "token": os.environ.get("TOKEN"), "path": os.environ["PATH"]}
"""


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """An index with msgspec and one more package."""
    with real_index() as served:
        served.add("tiny", "1.5")
        yield served


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose folders share one cache."""
    folder = tmp_path_factory.mktemp("dev")
    yield folder
    remove_tree(folder / "cache")


@pytest.fixture
def folder(shared: Path) -> Path:
    """A new folder of a function."""
    return write_template(shared, f"f{len([*shared.iterdir()])}", Template.PLAIN)


def gone(pidfd: int) -> bool:
    """Wait until a process has ended."""
    ready, _, _ = select.select([pidfd], [], [], WAIT_S)
    os.close(pidfd)
    return bool(ready)


def test_it_serves(folder: Path, index: PackageIndex) -> None:
    """It says each phase with its size, the line that calls it, and each call."""
    with dev_run(folder, index) as run:
        port = run.ready()
        line = run.until("next: curl")
        status, document = call(port, {"name": "Ada"})

        assert (status, document["outputs"]) == (200, {"text": "Hello, Ada!"})
        assert '-d \'{"inputs": {"name": "Ada"}}\'' in line
        assert run.until("POST / 200 ").endswith(" ms")
        assert call(port, {"name": "Ada"}, {"Origin": "http://evil.example"})[0] == 400
        said = "\n".join(run.said)
        assert "1 package, " in said
        assert "environment  " in said
        assert run.end() == 0
        assert run.said[-1] == "stopped"
        with socket.socket() as end:
            assert end.connect_ex(("127.0.0.1", port)) != 0


def test_changes_start_it_again(folder: Path, index: PackageIndex) -> None:
    """A failed load shows its traceback and waits; new needs make a new lock."""
    with dev_run(folder, index) as run:
        run.ready()
        (folder / "handler.py").write_text("import tiny\ndef predict(): return {'v': tiny.V}\n")
        run.until("changed: handler.py: starts again")
        run.until("ModuleNotFoundError: No module named 'tiny'")
        run.until("waits for a change")
        (folder / "requirements.txt").write_text("tiny >= 2\n")
        assert "tiny<2" in run.until("we can conclude") or "tiny" in run.said[-1]
        run.until("waits for a change")
        (folder / "requirements.txt").write_text("tiny >= 1\n")
        assert "2 packages, " in run.until("lock  ")
        assert call(run.ready())[1]["outputs"] == {"v": "1.5"}

        (folder / "handler.py").write_text("def predict():\n    return {'v': 1 // 0}\n")
        run.until("starts again")
        assert call(run.ready())[0] == 500
        run.until('File "handler.py", line 2, in predict')
        run.until("POST / 500 ")


def test_equal_needs_ask_no_index(folder: Path, index: PackageIndex) -> None:
    """The lock and the environment of before are taken; --upgrade asks."""
    with dev_run(folder, index) as run:
        run.ready()
    index.asked.clear()
    with dev_run(folder, index) as run:
        run.ready()
        assert ", stored" in "\n".join(run.said)
        assert ", there already, " in "\n".join(run.said)
    assert index.asked == []
    with dev_run(folder, index, "--upgrade") as run:
        run.ready()
    assert index.asked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left(folder: Path, index: PackageIndex, number: int) -> None:
    """The process and its children end with `fnctl`. It has the variables that are given."""
    (folder / "handler.py").write_text(CHILD)
    with dev_run(folder, index, "--env", "TOKEN=abc") as run:
        said = call(run.ready())[1]["outputs"]
        ends = [os.pidfd_open(pid) for pid in said["pids"]]
        assert said["token"] == "abc"
        assert said["path"].startswith(f"{folder.parent}/fnctl-dev-")
        assert run.end(number) == 0

    assert [gone(end) for end in ends] == [True, True]
    assert not Path(said["path"].partition(":")[0]).exists()


def test_killed(folder: Path, index: PackageIndex) -> None:
    """The kernel ends the process when `fnctl` is killed."""
    (folder / "handler.py").write_text(CHILD)
    with dev_run(folder, index) as run:
        server, child = call(run.ready())[1]["outputs"]["pids"]
        end = os.pidfd_open(server)
        run.process.kill()
        assert gone(end)
        os.kill(child, signal.SIGKILL)
    assert run.process.returncode == -signal.SIGKILL


def test_hangs(folder: Path, index: PackageIndex) -> None:
    """A `predict` that hangs is shown with its line, and it serves again."""
    with (folder / "function.toml").open("a") as file:
        file.write("[limits]\ntimeout_s = 0.2\n")
    (folder / "handler.py").write_text(
        "import threading\ndef predict():\n    threading.Event().wait()\n"
    )
    with dev_run(folder, index) as run:
        assert call(run.ready())[0] == 504
        run.until('File "handler.py", line 3, in predict')
        run.until("it hung: starts again")
        run.ready()


def test_a_command_is_served(folder: Path, index: PackageIndex) -> None:
    """A server of the folder's own, by the interpreter that has its packages."""
    (folder / "handler.py").unlink()
    (folder / "requirements.txt").write_text("tiny\n")
    (folder / "function.toml").write_text(
        'schema = 1\n[python]\n[server]\ncommand = "python main.py ${PORT}"\n'
    )
    (folder / "main.py").write_text(
        "import http.server, sys, tiny\n"
        "print('has tiny', tiny.V)\n"
        "http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))\n"
    )
    with dev_run(folder, index) as run:
        run.until("has tiny 1.5")
        port = run.ready()
        assert run.until("next:") == f"next: curl http://127.0.0.1:{port}/"


def test_refusals(folder: Path, index: PackageIndex) -> None:
    """A port that is taken, a variable that is none, a folder without a function."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with dev_run(folder, index, "--port", port) as run:
            run.until(f"--port {port}: expected a free port, got: Address already in use")
            assert run.process.wait(WAIT_S) == 2
    with dev_run(folder, index, "--env", "A-B=1") as run:
        run.until("--env: expected NAME=VALUE, got 'A-B=1'")
        assert run.process.wait(WAIT_S) == 2
    for path in folder.iterdir():
        path.unlink()
    with dev_run(folder, index) as run:
        run.until("expected handler.py or function.toml in")
        assert run.process.wait(WAIT_S) == 1

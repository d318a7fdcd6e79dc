"""What is executed as a server."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_image.contract.server import ServerSpec
from runtime_image.replica.loop import Loop
from runtime_image.server import libc, process_tree
from runtime_image.server.processes import Folders, Launch, ServerProcesses, plan, uses_socket

RUN_DIR = Path("/run/fn/a1")
FOLDERS = Folders.below(RUN_DIR)
MODEL_DIR = Path("/m/a1")


def planned(spec: ServerSpec, **own: str) -> Launch:
    """Return what is executed on port 8000."""
    return plan(spec, MODEL_DIR, FOLDERS, 8000, own)


def test_names_are_replaced_without_a_shell() -> None:
    """In every word and variable, any number of times; nothing else is expanded."""
    command = ("x", "--at=${HOST}:${PORT}/${PORT}", "${SOCKET}", "$HOME ${HOME} *")
    launch = planned(ServerSpec("web@1", command, env={"AT": "${PORT}"}))

    assert launch.arguments == [
        "x",
        "--at=127.0.0.1:8000/8000",
        "/run/fn/a1/server/socket/http.sock",
        "$HOME ${HOME} *",
    ]
    assert launch.environment["AT"] == "8000"
    assert launch.folder == MODEL_DIR


def test_empty_words_and_variables_stay_empty() -> None:
    """A program may ask for an empty argument."""
    launch = planned(ServerSpec("web@1", ("x", "--prefix", ""), env={"EMPTY": ""}))

    assert launch.arguments == ["x", "--prefix", ""]
    assert launch.environment["EMPTY"] == ""


def test_secrets_are_used_as_they_are() -> None:
    """Nothing is replaced in a value; it cannot change the port or the marker."""
    secrets = {"TOKEN": "${PORT}", "PORT": "1", "FN_REPLICA": "x"}

    launch = plan(ServerSpec("web@1", ("x",)), MODEL_DIR, FOLDERS, 8000, {}, secrets)

    found = launch.environment
    assert (found["TOKEN"], found["PORT"]) == ("${PORT}", "8000")
    assert found["FN_REPLICA"] == "/run/fn/a1"


def test_the_sidecars_environment_is_not_passed_on() -> None:
    """Only PATH, LANG, the threads and the device."""
    own = {"PATH": "/p", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "GPU-1", "SECRET": "x"}
    launch = planned(ServerSpec("web@1", ("x",)), **own)

    assert launch.environment == {
        "PATH": "/p",
        "HOME": "/run/fn/a1/server/home",
        "TMPDIR": "/run/fn/a1/server/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "PORT": "8000",
        "FN_REPLICA": "/run/fn/a1",
        "FN_BUNDLE": str(MODEL_DIR),
    }


def test_a_function_may_not_choose_its_port_device_or_marker() -> None:
    """The rest of its environment is its own."""
    env = {"PORT": "1", "FN_REPLICA": "x", "CUDA_VISIBLE_DEVICES": "0,1", "PATH": "/own"}
    launch = planned(ServerSpec("web@1", ("x",), env=env), CUDA_VISIBLE_DEVICES="GPU-1")

    assert launch.environment["PORT"] == "8000"
    assert launch.environment["FN_REPLICA"] == "/run/fn/a1"
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert launch.environment["PATH"] == "/own"


ALONE = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, "0"), ("", "0"), ("GPU-1", "1"), ("0,3", "2"), ("GPU-1,GPU-2,GPU-3,GPU-4", "4")],
)
def test_a_server_learns_the_number_of_its_gpus(visible: str | None, gpus: str) -> None:
    """${GPUS} is replaced in every word and variable by what the driver lets it see."""
    command = ("x", "--tensor-parallel-size", "${GPUS}", "${GPUS}x${GPUS}")
    own = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    launch = planned(ServerSpec("llm@1", command, env={"N": "${GPUS}"}), **own)

    assert launch.arguments[2:] == [gpus, f"{gpus}x{gpus}"]
    assert launch.environment["N"] == gpus
    assert ("NCCL_SOCKET_IFNAME" in launch.environment) == (int(gpus) > 1)


def test_several_gpus_find_each_other_without_a_network() -> None:
    """NCCL and Gloo take the loopback interface, unless the function says otherwise; with a network
    they choose themselves. CUDA's order is the driver's."""
    own = {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    alone = planned(ServerSpec("llm@1", ("x",)), **own).environment
    reaching = planned(ServerSpec("llm@1", ("x",), network="egress"), **own).environment
    env = {"NCCL_SOCKET_IFNAME": "eth7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    named = planned(ServerSpec("llm@1", ("x",), env=env), **own).environment

    assert alone.items() >= ALONE.items()
    assert {name for name in ALONE if name in reaching} == {"CUDA_DEVICE_ORDER"}
    assert {name: named[name] for name in ALONE} == ALONE | {"NCCL_SOCKET_IFNAME": "eth7"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ServerSpec("web@1", ("x", "--uds=${SOCKET}")), True),
        (ServerSpec("web@1", ("x",), env={"AT": "${SOCKET}"}), True),
        (ServerSpec("web@1", ("x", "${PORT}")), False),
    ],
)
def test_a_socket_is_used_if_it_is_named(spec: ServerSpec, expected: bool) -> None:
    """In the command or a variable."""
    assert uses_socket(spec) is expected


@pytest.fixture
def child() -> Iterator[process_tree.Process]:
    """A child process that waits."""
    pid = os.fork()
    if not pid:
        signal.pause()
        os._exit(0)
    found = [one for one in process_tree.descendants(os.getpid()) if one.pid == pid]
    yield found[0]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_pid_that_was_reused_is_not_killed(child: process_tree.Process) -> None:
    """The time of the start tells two processes apart."""
    process_tree.kill(child._replace(started=child.started + 1))
    assert child in process_tree.descendants(os.getpid())

    process_tree.kill(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child not in process_tree.descendants(os.getpid())


def test_memory_is_summed(child: process_tree.Process) -> None:
    """The peak is not below what is resident; memory of processes that are gone is 0."""
    resident = process_tree.resident_mib([child])
    gone = child._replace(pid=2**22 + 1)

    assert resident > 1
    assert process_tree.resident_mib([child, gone], is_peak=True) >= resident
    assert 0 < process_tree.private_mib([child]) <= resident
    process_tree.kill(gone)


@pytest.fixture
def loop() -> Iterator[Loop]:
    """A loop; what servers change in this process is restored."""
    handler = signal.getsignal(signal.SIGCHLD)
    made = Loop(time.monotonic)
    yield made
    made.close()
    signal.signal(signal.SIGCHLD, handler)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 0)


def test_a_server_that_cannot_run_reports_why(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the child, before or in its exec, is raised by the parent."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    processes = ServerProcesses(loop, exited=lambda: None)
    environment = {"PATH": os.defpath}

    def refuse() -> None:
        raise ValueError("not here")

    for program, enter, expected in (
        ("x", refuse, "x: not here"),
        ("x", lambda: None, f"x: not found in {os.defpath}; expected a program there"),
        ("bin/x", lambda: None, "bin/x: No such file or directory; expected an absolute path"),
        ("/bin/x y", lambda: None, "/bin/x y: No such file or directory$"),
    ):
        with pytest.raises(OSError, match=expected):
            processes.start(Launch([program], environment, Path("/")), enter, has_namespace=False)
        os.waitpid(-1, 0)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),
    ],
)
def test_the_exit_of_a_server_is_described(loop: Loop, code: str, said: str) -> None:
    """By its code or signal; before, it runs."""
    processes = ServerProcesses(loop, exited=loop.stop)
    assert processes.said_exit() == "runs"
    launch = Launch([sys.executable, "-I", "-S", "-c", code], {}, Path("/"))

    processes.start(launch, lambda: None, has_namespace=False)
    loop.run()

    assert processes.said_exit() == said

"""A real agent process over the stand-in of the driver's library; the test is its manager."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime_image.contract.agent import HostReport, from_json
from runtime_image.contract.gpus import GpuProcess, Snapshot
from runtime_image.contract.link import Kind
from tests.support.blocking import BlockingLink
from tests.support.nvml.board import NO_DRIVER, Board, Gpu, build
from tests.support.remote_replica import RemoteReplica

pytestmark = pytest.mark.slow
A = "GPU-aaaa"
RSS_MAX_MIB = 30


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def board(root: Path) -> Iterator[Board]:
    """The driver's library of the agent's process, with one GPU."""
    made = Board(root / "nvml")
    made.add(Gpu(A, 24_000, 400, 100))
    yield made
    made.hang(False)


@pytest.fixture
def agent(root: Path, board: Board) -> Iterator[RemoteReplica]:
    library = root / "lib"
    library.mkdir()
    build(library)
    environment = {"LD_LIBRARY_PATH": str(library), "FN_STANDIN_NVML": str(board.file)}
    with closing(make(root, environment)) as made:
        yield made


def make(root: Path, environment: dict[str, str], orphan_s: float = 60.0) -> RemoteReplica:
    return RemoteReplica(
        root,
        orphan_s=orphan_s,
        environment=environment,
        engine="agent",
        role="standby",
        bound="",
        data="",
        greeting="",
    )


def report_of(
    link: BlockingLink, is_wanted: Callable[[HostReport], object] = lambda _report: True
) -> HostReport:
    """Return the next report that is wanted."""
    while True:
        frame = link.next()
        if frame.kind is Kind.REPORT and is_wanted(report := from_json(json.loads(frame.body))):
            return report


def test_a_host_is_reported(agent: RemoteReplica, board: Board) -> None:
    """GPUs with their processes, memory, cores, disk and clocks; in little memory."""
    board.claim(A, 71, 2_000)
    link = agent.greeted()
    report = report_of(link)
    assert report.gpus is not None
    (gpu,) = report.gpus.gpus

    assert (report.number, report.no_driver, report.is_absent) == (1, "", False)
    assert (gpu.uuid, gpu.total_mib, gpu.processes) == (A, 24_000, (GpuProcess(71, 2_000.0),))
    assert report.cores == len(os.sched_getaffinity(0))
    assert report.memory_mib == pytest.approx(os.sysconf("SC_PHYS_PAGES") * 4096 / 2**20, rel=0.01)
    assert 0 < report.memory_free_mib < report.memory_mib
    assert 0 < report.disk_free_mib <= report.disk_mib
    assert abs(report.wall_s - time.time()) < 60
    assert abs(report.monotonic_s - time.monotonic()) < 60
    assert agent.resident_mib() < RSS_MAX_MIB


def test_a_ping_is_answered_with_a_report(agent: RemoteReplica, board: Board) -> None:
    """A report that is asked for shows what has just changed."""
    link = agent.greeted()
    first = report_of(link)
    board.claim(A, 72, 1_000)
    link.send(Kind.PING)
    kinds = [link.next().kind]

    second = report_of(link)
    while not (second.gpus and second.gpus.gpus[0].processes):
        second = report_of(link)

    assert kinds == [Kind.PONG]
    assert second.number > first.number


def test_errors_of_gpus_are_numbered(agent: RemoteReplica, board: Board) -> None:
    """The last errors stay in all reports, each with its number."""
    link = agent.greeted()
    report_of(link)
    board.report(A, 79)
    one = report_of(link, lambda report: report.xids)
    board.report(A, 31)
    two = report_of(link, lambda report: len(report.xids) == 2)

    assert [(number, event.xid) for number, event in two.xids] == [(1, 79), (2, 31)]
    assert one.xids == two.xids[:1]


@pytest.mark.parametrize("has_library", [False, True])
def test_without_a_driver_the_rest_is_reported(root: Path, board: Board, has_library: bool) -> None:
    """Disk and memory are reported without a driver, or without its library."""
    library = root / "lib"
    library.mkdir()
    environment = {}
    if has_library:
        build(library)
        environment = {"LD_LIBRARY_PATH": str(library), "FN_STANDIN_NVML": str(board.file)}
        board.answer("nvmlInitWithFlags", NO_DRIVER)
    with closing(make(root, environment)) as agent:
        report = report_of(agent.greeted())

        assert (report.gpus, report.is_absent) == (None, True)
        assert report.no_driver.startswith("the NVIDIA driver cannot be used: ")
        assert report.disk_free_mib > 0


def test_a_gpu_that_comes_back_is_seen(agent: RemoteReplica, board: Board) -> None:
    """A driver that answers again is read again."""
    board.answer("nvmlInitWithFlags", NO_DRIVER)
    link = agent.greeted()
    report_of(link, lambda report: report.gpus is None)

    board.answer("nvmlInitWithFlags", 0)
    for count in range(20):
        link.send(Kind.PING, aux=count)

    assert isinstance(report_of(link, lambda report: report.gpus).gpus, Snapshot)


def test_a_silent_driver_silences_only_itself(agent: RemoteReplica, board: Board) -> None:
    """While the driver blocks, the agent answers, and then reports that."""
    link = agent.greeted()
    report_of(link)
    board.hang(True)
    link.send(Kind.PING)

    report = report_of(link, lambda report: report.gpus is None)

    assert "has not answered for" in report.no_driver
    assert not report.is_absent


def test_an_agent_dials_again_and_outlives_its_manager(root: Path) -> None:
    """A new link gets reports, too; without any manager the agent ends with 70."""
    with closing(make(root, {}, orphan_s=1.0)) as agent:
        link = agent.greeted()
        report_of(link)
        link.close()
        again, hello = agent.dialled()
        again.send(Kind.WELCOME)
        again.send(Kind.PING)
        report_of(again)
        agent.deafen()
        again.close()

        assert hello["dial"] == 2
        assert agent.exit() == 70


@pytest.mark.parametrize("how", ["drained", "terminated"])
def test_an_agent_ends(root: Path, how: str) -> None:
    """DRAIN and TERM end an agent at once."""
    with closing(make(root, {})) as agent:
        link = agent.greeted()
        report_of(link)
        if how == "drained":
            link.send(Kind.DRAIN)
        else:
            agent.signal(signal.SIGTERM)

        assert agent.exit() == 0

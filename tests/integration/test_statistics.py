"""Statistics of the Open Inference Protocol over real replicas, of one and of two processes."""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import models
from tests.support.doses import amount
from tests.support.process_server import END_S, ServerProcess, server_process, wait_end
from tests.support.worker_server import Line, lines, until_replaced, watch, worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAME = "twice"
TOGETHER = 8
"""Connections that call at once."""


@pytest.fixture(scope="module", params=amount([2], [2, 1]), ids="{}-processes".format)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with a function of two revisions, whose requests may be joined."""
    folder = tmp_path_factory.mktemp("statistics")
    workers = [] if request.param == 1 else ["--workers", "2"]
    with server_process(folder / "data", "--cpu-slots", "2", *workers) as server:
        deploy(server, folder, 2)
        yield server


def deploy(server: ServerProcess, folder: Path, scale: int) -> None:
    """Deploy the function with another factor."""
    server.fnctl_json("deploy", str(models.affine(folder, scale, 0)), "--name", NAME)


def is_shared(server: ServerProcess) -> bool:
    """Return whether the server has workers."""
    assert server.process is not None
    return bool(worker_pids(server.process.pid))


@pytest.fixture
def each(server: ServerProcess) -> Iterator[list[Line]]:
    """A connection to each gateway process."""
    if is_shared(server):
        with lines(server) as found:
            yield found
    else:
        with closing(Plain(server)) as line:
            yield [line]


class Plain(Line):
    """A connection to a server, whichever process accepts it."""

    def __init__(self, server: ServerProcess) -> None:
        parts = urlsplit(server.url)
        self._http = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=END_S)
        self.headers = {}


def infer(line: Line, rows: int, version: str = "") -> int:
    """Send an inference of so many rows; return its status."""
    data = [1.0] * (4 * rows)
    tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": data}
    path = f"/v2/models/{NAME}{version}/infer"
    return line.ask("POST", path, {"inputs": [tensor]})[0]


def stats(line: Line, version: int | None = 1) -> dict[str, Any]:
    """Return the statistics of a version."""
    status, found = line.ask("GET", f"/v2/models/{NAME}/versions/{version}/stats")
    assert status == 200, found
    [model] = found["model_stats"]
    assert (model["name"], model["version"]) == (NAME, str(version))
    return dict(model)


def runs(found: dict[str, Any]) -> dict[int, int]:
    """Return the runs by batch size; the three counts of a size are equal."""
    for one in found["batch_stats"]:
        assert len({one[part]["count"] for part in one if part != "batch_size"}) == 1
    return {one["batch_size"]: one["compute_infer"]["count"] for one in found["batch_stats"]}


def flat(found: Any, path: str = "") -> dict[str, int]:
    """Return every number of the statistics by its path."""
    if isinstance(found, list):
        found = {f"{one['batch_size']}": one for one in found}
    if not isinstance(found, dict):
        return {path: found} if isinstance(found, int) else {}
    parts = [flat(value, f"{path}/{name}") for name, value in found.items()]
    return {name: value for part in parts for name, value in part.items()}


def more(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Return what was added to each number; none may have fallen."""
    first, last = flat(before), flat(after)
    assert first.keys() <= last.keys()
    added = {name: value - first.get(name, 0) for name, value in last.items()}
    assert min(added.values()) >= 0, added
    return added


def test_known_requests_give_known_numbers(each: list[Line]) -> None:
    """Requests, rows, runs and failures of every process are in every process's answer at once."""
    before = stats(each[0])
    began_ms = time.time() * 1000
    for line in each:
        assert [infer(line, rows) for rows in (1, 4, 1, 1)] == [200] * 4
        assert line.call(NAME, {"x": [[1, 2, 3, 4]] * 2})[0] == 200
        assert line.call(NAME, {"x": [[1]]})[0] == 400
    found = [stats(line) for line in each]

    count = len(each)
    assert all(one == found[0] for one in found)
    added = more(before, found[0])
    assert added["/inference_count"] == 9 * count
    assert added["/execution_count"] == 5 * count
    now = runs(found[0])
    assert {rows: now[rows] - runs(before).get(rows, 0) for rows in (1, 2, 4)} == {
        1: 3 * count,
        2: count,
        4: count,
    }
    parts = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert {part: added[f"/inference_stats/{part}/count"] for part in parts} == dict.fromkeys(
        parts, 5 * count
    )
    assert added["/inference_stats/fail/count"] == count
    assert added["/inference_stats/fail/ns"] > 0
    took = {part: added[f"/inference_stats/{part}/ns"] for part in parts}
    assert min(took.values()) > 0
    assert sum(took.values()) <= 2 * took["success"]
    assert began_ms - 1 <= found[0]["last_inference"] <= time.time() * 1000 + 1


def test_joined_requests_count_once_as_a_run(server: ServerProcess, each: list[Line]) -> None:
    """Rows of all runs are the rows of all requests, however they were joined."""
    before = stats(each[0])

    def send(rows: int) -> list[int]:
        with closing(Plain(server)) as line:
            return [infer(line, rows) for _ in range(20)]

    with ThreadPoolExecutor(TOGETHER) as pool:
        statuses = [one for several in pool.map(send, [1, 2] * (TOGETHER // 2)) for one in several]
    after = stats(each[0])

    assert statuses == [200] * (20 * TOGETHER)
    added = more(before, after)
    batches = {rows: count - runs(before).get(rows, 0) for rows, count in runs(after).items()}
    assert added["/inference_count"] == 30 * TOGETHER
    assert sum(rows * count for rows, count in batches.items()) == 30 * TOGETHER
    assert sum(batches.values()) == added["/execution_count"] <= 20 * TOGETHER
    assert added["/inference_stats/success/count"] == 20 * TOGETHER


def test_numbers_outlive_replicas_and_traffic(
    server: ServerProcess, each: list[Line], tmp_path: Path
) -> None:
    """A killed replica, a pool without one, and another revision change no number that was told."""
    infer(each[0], 1)
    before = stats(each[0])
    pids = server.replica_pids("serve")
    for pid in pids:
        watched = watch(pid)
        os.kill(pid, signal.SIGKILL)
        wait_end(watched)
    assert stats(each[0]) == before

    assert [infer(line, 3) for line in each] == [200] * len(each)
    woken = stats(each[-1])
    added = more(before, woken)
    assert (added["/inference_count"], added["/execution_count"]) == (3 * len(each), len(each))

    deploy(server, tmp_path, 3)
    assert infer(each[0], 1) == 200
    assert stats(each[0]) == woken
    other = stats(each[0], 2)
    assert (other["inference_count"], other["execution_count"], runs(other)) == (1, 1, {1: 1})
    status, every = each[0].ask("GET", f"/v2/models/{NAME}/stats")
    assert (status, [one["version"] for one in every["model_stats"]]) == (200, ["1", "2"])


def test_numbers_outlive_a_worker(server: ServerProcess, each: list[Line]) -> None:
    """A killed worker's requests stay counted, and its successor's are added."""
    if not is_shared(server):
        pytest.skip("this server has no workers")
    victim, other = each
    assert infer(victim, 5, "/versions/1") == 200
    before = stats(other)
    watched = watch(victim.pid)
    os.kill(victim.pid, signal.SIGKILL)
    wait_end(watched)
    assert stats(other) == before
    until_replaced(server, victim.pid)

    with lines(server) as fresh:
        assert [infer(line, 1, "/versions/1") for line in fresh] == [200, 200]
        added = more(before, stats(fresh[0]))
    assert (added["/inference_count"], added["/execution_count"]) == (2, 2)

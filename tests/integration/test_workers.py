"""Tests of two gateway processes over real replicas, which always have the same state."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import models
from tests.support.freezing import frozen
from tests.support.process_server import FNCTL, ServerProcess, server_process, wait_end
from tests.support.worker_server import Line, lines, until_replaced, watch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ONE: dict[str, Any] = {"x": [[1, 0, 0, 0]]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two workers and two slots."""
    folder = tmp_path_factory.mktemp("workers")
    with server_process(folder / "data", "--workers", "2", "--cpu-slots", "2") as server:
        yield server


@pytest.fixture
def both(server: ServerProcess) -> Iterator[list[Line]]:
    """Open a connection to each worker."""
    with lines(server) as both:
        yield both


def deploy(server: ServerProcess, folder: Path, name: str, scale: int) -> None:
    """Deploy a function that multiplies by `scale`."""
    folder.mkdir(exist_ok=True)
    model = models.affine(folder, scale, 0)
    server.fnctl_json("deploy", str(model), "--name", name)


def answers(both: list[Line], ref: str) -> list[Any]:
    """Return each worker's answer to the same call: a number, or a status."""
    found = []
    for line in both:
        status, document = line.call(ref, ONE)
        found.append(document["outputs"]["y"][0][0] if status == 200 else status)
    return found


def samples(server: ServerProcess, line: Line) -> dict[str, float]:
    """Return /metrics by the text of each sample's name and labels."""
    status, page = line.ask("GET", "/metrics", headers=server.headers)
    assert status == 200
    rows = re.findall(r"^([a-z_]+\{.*\}|[a-z_]+) (\S+)$", page.decode(), re.MULTILINE)
    return {name: float(value) for name, value in rows}


def requests_of(found: dict[str, float], name: str) -> float:
    """Return the number of successful calls of a function."""
    labels = f'function="{name}",namespace="default",outcome="ok",reason=""'
    return found.get(f"fngate_requests_total{{{labels}}}", 0.0)


def test_both_know_at_once_what_an_operator_did(
    server: ServerProcess, both: list[Line], tmp_path: Path
) -> None:
    """Directly after deploy, rollback or rm, each worker answers by the new state."""
    for round in range(3):
        deploy(server, tmp_path / "a", "turns", 2)
        assert answers(both, "turns") == [2, 2]
        deploy(server, tmp_path / "b", "turns", 3)
        assert answers(both, "turns") == [3, 3]
        assert answers(both, f"turns@{2 * round + 1}") == [2, 2]
        server.fnctl_json("rollback", "turns")
        assert answers(both, "turns") == [2, 2]
        server.fnctl_json("rm", "turns", "--yes")
        assert answers(both, "turns") == [404, 404]


def test_both_know_at_once_which_keys_there_are(
    server: ServerProcess, both: list[Line], tmp_path: Path
) -> None:
    """The first key ends anonymous calls on every worker, and a removed one is refused by each."""
    deploy(server, tmp_path, "locked", 2)
    key = server.fnctl_json("key", "add", "--scope", "invoke:locked")
    try:
        bearer = {"Authorization": f"Bearer {key['secret']}"}
        assert answers(both, "locked") == [401, 401]
        assert [line.call("locked", ONE, bearer)[0] for line in both] == [200, 200]
        assert [line.ask("GET", "/metrics", headers=bearer)[0] for line in both] == [403, 403]
    finally:
        server.fnctl_json("key", "rm", key["id"])
    assert [line.call("locked", ONE, bearer)[0] for line in both] == [401, 401]
    assert answers(both, "locked") == [401, 401]
    assert server.fnctl("access", "open").returncode == 0
    assert answers(both, "locked") == [2, 2]


def test_each_worker_passes_on_what_is_no_call(
    server: ServerProcess, both: list[Line], tmp_path: Path
) -> None:
    """Uploads, lists, refusals and long polls are proxied by each worker unchanged."""
    for number, line in enumerate(both):
        blob = os.urandom(1000) + bytes([number]) * 20_000_000
        path = f"/admin/v1/blobs/{hashlib.sha256(blob).hexdigest()}"
        assert line.ask("PUT", path, blob)[0] == 401
        line = Line(server)
        assert line.ask("HEAD", path, headers=server.headers)[0] == 404
        assert line.ask("PUT", path, blob, server.headers)[0] == 201
        assert line.ask("HEAD", path, headers=server.headers)[0] == 200
        status, problem = line.ask("GET", "/admin/v1/nothing?a=%2F", headers=server.headers)
        assert (status, problem["detail"]) == (404, "no route GET /admin/v1/nothing")
        assert line.ask("GET", "/readyz")[1] == {"status": "ok", "reasons": []}
        line.close()


def test_a_foreign_host_is_refused_by_every_worker(server: ServerProcess) -> None:
    """A foreign Host header is 421 for calls and for proxied requests."""
    with lines(server) as both:
        for line in both:
            for path in ("/readyz", "/admin/v1/keys", "/fn/x", "/healthz"):
                status, problem = line.ask("GET", path, headers={"Host": "evil.example"})
                assert (status, problem["code"]) == (421, "foreign_host")


def test_counts_of_a_killed_worker_are_kept(server: ServerProcess, tmp_path: Path) -> None:
    """The counts of a killed worker stay in /metrics, and the worker is replaced."""
    deploy(server, tmp_path, "counted", 2)
    with lines(server) as both:
        for line in both:
            for _ in range(10):
                assert line.call("counted", ONE)[0] == 200
        before = samples(server, both[0])
        assert requests_of(before, "counted") == 20
        gone = both[1].pid
        ended = watch(gone)
        os.kill(gone, signal.SIGKILL)
        wait_end(ended)
        assert requests_of(samples(server, both[0]), "counted") == 20
        until_replaced(server, gone)
    with lines(server) as both:
        for line in both:
            assert line.call("counted", ONE)[0] == 200
        after = samples(server, both[0])
    assert requests_of(after, "counted") == 22
    seconds = 'fngate_request_seconds_count{function="counted",namespace="default"}'
    assert after[seconds] == 22
    phases = 'fngate_cold_start_seconds_count{function="counted",namespace="default",phase="load"}'
    assert after[phases] == 1


def test_a_removed_function_leaves_the_metrics(
    server: ServerProcess, both: list[Line], tmp_path: Path
) -> None:
    """A removed function's series disappear from every worker; a later function of the name starts
    at 0."""
    for _ in range(2):
        deploy(server, tmp_path, "fleeting", 2)
        assert answers(both, "fleeting") == [2, 2]
        assert requests_of(samples(server, both[0]), "fleeting") == 2
        server.fnctl_json("rm", "fleeting", "--yes")
        assert not any('function="fleeting"' in name for name in samples(server, both[1]))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_taken_is_said_so(
    server: ServerProcess, tmp_path: Path, workers: str
) -> None:
    """A second server on the same port is refused, whatever its number of workers."""
    port = str(urlsplit(server.url).port)
    done = subprocess.run(
        [FNCTL, "serve", "--port", port, "--data", str(tmp_path / "other"), "--workers", workers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert port in done.stderr
    assert "address already in use" in done.stderr.lower()


def test_a_worker_that_is_asked_to_go_finishes_and_is_replaced(server: ServerProcess) -> None:
    """TERM to one worker makes it finish and close its connections; it is replaced, and the server
    goes on."""
    with lines(server) as both:
        gone = both[0].pid
        ended = watch(gone)
        os.kill(gone, signal.SIGTERM)
        wait_end(ended)
        until_replaced(server, gone)
        with pytest.raises((http.client.HTTPException, OSError)):
            both[0].ask("GET", "/healthz")


def balance(found: dict[str, float]) -> tuple[float, float]:
    """Return the number of accepted requests, and of those missing from the ledger."""
    accepted = found["fngate_accepted_total"]
    parts = ("fngate_ended_total{", "fngate_open_requests{")
    return accepted, accepted - sum(n for name, n in found.items() if name.startswith(parts))


def test_the_ledger_balances_over_a_worker_that_hangs_and_dies(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A stopped worker is counted by its shared counters, with its open requests in flight.

    It reports again when it continues, and its open requests are aborted when it dies.
    """
    deploy(server, tmp_path, "hung", 2)
    with lines(server) as both:
        for line in both:
            assert line.call("hung", ONE)[0] == 200
        mine, other = both
        accepted, missing = balance(samples(server, mine))
        assert missing == 0
        gone = other.pid
        with frozen(gone):
            assert balance(samples(server, mine)) == (accepted, 0)
        assert other.call("hung", ONE)[0] == 200
        assert balance(samples(server, mine)) == (accepted + 1, 0)
        ended = watch(gone)
        os.kill(gone, signal.SIGKILL)
        wait_end(ended)
        assert balance(samples(server, mine)) == (accepted + 1, 0)
        until_replaced(server, gone)
        assert balance(samples(server, mine)) == (accepted + 1, 0)

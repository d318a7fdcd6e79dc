"""`fnctl bench` against a real server: its counts are the server's, and it ends cleanly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.process_server import FNCTL, ServerProcess, server_process
from tests.support.sshd import sshd

pytestmark = pytest.mark.slow

END_S = 60.0
SHORT = ("--seconds", "0.4", "--warmup", "0.1")
MANIFEST = """
schema = 1
name = "pages"
[server]
command = "python3 -m http.server ${PORT} --bind 127.0.0.1 --protocol HTTP/1.1"
[[sample]]
path = "/none"
status = 404
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the digits."""
    with server_process(tmp_path_factory.mktemp("bench") / "data") as running:
        running.fnctl_json("deploy", str(Path("functions/digits").resolve()))
        yield running


def counted(server: ServerProcess) -> float:
    """Return how many calls of the digits the server has answered."""
    request = urllib.request.Request(f"{server.url}/metrics", headers=server.headers)
    with urllib.request.urlopen(request) as response:
        families = text_string_to_metric_families(response.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "fngate_requests_total" and sample.labels["function"] == "digits"
        )


def started(server: ServerProcess, *words: str) -> subprocess.Popen[str]:
    """Start `fnctl bench digits`."""
    return subprocess.Popen(
        [FNCTL, "bench", "digits", *words],
        env={"PATH": os.environ["PATH"], "FN_URL": server.url, "FN_DATA": str(server.data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_calls(server: ServerProcess, more: float) -> None:
    """Wait until the server has answered `more` calls than now."""
    before, until_s = counted(server), time.monotonic() + END_S
    while counted(server) < before + more:
        assert time.monotonic() < until_s


def test_every_call_is_one_of_the_server(server: ServerProcess) -> None:
    """Points, bytes and rows as asked; the server has answered just the calls that count, and one
    for each point."""
    before = counted(server)

    words = ("-b", "1,4", "-c", "1,3", "--seconds", "0.3", "--warmup", "0")
    data = server.fnctl_json("bench", "digits", *words)

    points: list[dict[str, Any]] = data["points"]
    assert [(one["rows"], one["concurrency"]) for one in points] == [(1, 1), (1, 3), (4, 1), (4, 3)]
    assert [one["errors"] for one in points] == [{}] * 4
    assert sum(one["answers"] for one in points) + len(points) == counted(server) - before
    for one in points:
        # Little's law: calls on their way are rate times mean latency, which is at least p50 / 2.
        assert one["calls_per_s"] * one["latency_ms"]["p50"] / 2e3 <= one["concurrency"]
        assert one["body"] == "binary tensors"


def test_cold_starts_and_pictures(server: ServerProcess, tmp_path: Path) -> None:
    """Each cold start has its phases; an open load runs at its rate; the file is a picture."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.png"
    words = ("--cold", "2", "--force", "-c", "4", "--rate", "50", "--plot", str(path))

    data = server.fnctl_json("bench", "digits", *SHORT, *words)

    assert data["cold"]["count"] == 2
    assert data["cold"]["phases_ms"]["load"] > 0
    assert data["cold"]["latency_ms"]["max"] >= max(data["cold"]["phases_ms"].values())
    assert 1 <= data["points"][0]["answers"] <= 60
    assert path.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_prints_the_figures_so_far(server: ServerProcess) -> None:
    """Exit code 130, a marked table, no process left; a second point is not begun."""
    with started(server, "-c", "2,4", "--seconds", "50", "--warmup", "0") as process:
        until_calls(server, 50)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=END_S)

    assert process.returncode == 130, err
    rows = out.strip().splitlines()[2:]
    assert len(rows) == 1
    assert rows[0].endswith("0 (partial)")
    assert "partial: interrupted" in err
    assert "Traceback" not in err


def test_a_server_function_gets_its_sample(server: ServerProcess, tmp_path: Path) -> None:
    """With the status that the sample expects."""
    (tmp_path / "function.toml").write_text(MANIFEST)
    server.fnctl_json("deploy", str(tmp_path), "--trust")

    data = server.fnctl_json("bench", "pages", *SHORT, "-c", "2")
    server.fnctl_json("rm", "pages", "--yes")

    [point] = data["points"]
    assert (point["body"], point["errors"]) == ("GET /none", {})
    assert point["answers"] > 2


def test_a_load_goes_through_ssh(server: ServerProcess, tmp_path: Path) -> None:
    """Each connection is a channel of one SSH connection."""
    with sshd(tmp_path / "sshd") as far:
        words = ("--ssh", far.target, "--identity", str(far.identity))
        words += ("--known-hosts", str(far.known_hosts))
        data = server.fnctl_json("bench", "digits", *SHORT, "-c", "3", *words)

    [point] = data["points"]
    assert point["errors"] == {}
    assert point["answers"] > 3


def test_a_server_that_goes_away_is_reported(server: ServerProcess) -> None:
    """Exit code 3, with the figures so far. The last test: it kills the server."""
    with started(server, "-c", "2", "--seconds", "50", "--warmup", "0", "--json") as process:
        until_calls(server, 20)
        server.kill()
        out, err = process.communicate(timeout=END_S)

    assert process.returncode == 3, err
    [point] = json.loads(out)["points"]
    assert point["partial"].startswith("the server does not answer any more")
    assert point["answers"] >= 20
    assert point["errors"]["no connection"] > 0

"""Tests of device-seconds of real replicas, over a restart, a crash and two gateway processes."""

from __future__ import annotations

import json
import sqlite3
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HANDLER = """
import time

def predict(inputs, ctx):
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        pass
    return {"y": 1}
"""
MANIFEST = """
schema = 1
name = "slow"
[runtime]
engine = "python"
[input.x]
kind = "json"
[scaling]
idle_s = 3600
[sample]
x = 1
"""
RUN_S = 0.4


def deploy(server: ServerProcess, folder: Path) -> None:
    """Deploy a function whose runs take 0.4 s."""
    folder.mkdir()
    (folder / "function.toml").write_text(MANIFEST)
    (folder / "handler.py").write_text(HANDLER)
    server.fnctl_json("deploy", str(folder), "--trust")


def call(server: ServerProcess, times: int) -> None:
    for _ in range(times):
        server.fnctl_json("invoke", "slow", "-i", "x=1")


def call_with(server: ServerProcess, key: str) -> None:
    """Call once over HTTP with this key."""
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/fn/slow", b'{"inputs": {"x": 1}}', head)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def get(server: ServerProcess, path: str) -> Any:
    request = urllib.request.Request(f"{server.url}/admin/v1{path}", headers=server.headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def kept(server: ServerProcess) -> tuple[float, float, float]:
    """Return the stored waking, idle and busy seconds, by the hour; finer buckets have the same
    sums."""
    sql = "SELECT sum(waking_s), sum(idle_s), sum(busy_s) FROM device_use WHERE name = 'slow'"
    database = sqlite3.connect(server.data / "fngate.db")
    asked = f"{sql} AND bucket_s = ?"
    sums = [database.execute(asked, (bucket_s,)).fetchone() for bucket_s in (60, 600, 3600)]
    database.close()
    assert sums[0] == pytest.approx(sums[1])
    assert sums[1] == pytest.approx(sums[2])
    return sums[2] if sums[2][0] is not None else (0.0, 0.0, 0.0)


def age_s(server: ServerProcess) -> float:
    """Return the seconds since the function's replica became ready, from the replica list."""
    (replica,) = [one for one in get(server, "/replicas")["items"] if one["role"] == "serve"]
    return time.time() - float(replica["since_s"])


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_runs_are_busy_seconds(tmp_path: Path, options: Sequence[str]) -> None:
    """Runs count as busy for as long as they took, the rest of a replica's life as waking or idle.

    A server that is stopped stores all of it, and the next one shows it.
    """
    with server_process(tmp_path / "data", *options) as server:
        deploy(server, tmp_path / "slow")
        key = server.fnctl_json("key", "add", "--scope", "invoke")
        call(server, 3)
        call_with(server, key["secret"])
        ready_s = age_s(server)
        server.stop()
        waking_s, idle_s, busy_s = kept(server)
        server.start()
        totals = get(server, "/functions/slow/timeline")["totals"]
        devices = get(server, "/timeline?hours=24")["devices"]
        costs = {one["key"]: one for one in get(server, "/cost?by=key&function=slow")["items"]}
        used = get(server, "/usage?by=key")["items"]

    assert 4 * RUN_S - 0.05 <= busy_s <= 4 * RUN_S + 0.5
    shares = {
        id: one["held_s"] / sum(one["held_s"] for one in costs.values())
        for id, one in costs.items()
    }
    assert len(shares) == 2
    assert shares[key["id"]] == pytest.approx(0.25, abs=0.08)
    assert used == []
    assert waking_s > 0.0
    assert idle_s + busy_s >= ready_s - 0.1
    assert totals["busy_s"] == pytest.approx(busy_s, abs=0.01)
    assert sum(one["busy_s"] for one in devices) == pytest.approx(busy_s, abs=0.01)


def test_a_crash_loses_little_and_counts_nothing_twice(tmp_path: Path) -> None:
    """After a crash the next server adopts the replica; its earlier runs are not counted again, its
    later ones are."""
    ping = {"FN_PING_S": "0.2"}
    with server_process(tmp_path / "data", environment=ping) as server:
        deploy(server, tmp_path / "slow")
        call(server, 2)
        server.kill()
        _, _, before_s = kept(server)
        server.start()
        call(server, 2)
        busy = [one["busy"] for one in get(server, "/devices")["items"]]
        server.stop()
        _, _, after_s = kept(server)

    assert before_s <= 2 * RUN_S + 0.5
    assert after_s - before_s <= 2 * RUN_S + 0.5
    assert after_s - before_s >= RUN_S / 2
    assert all(share is None or 0.0 <= share <= 1.0 for share in busy)

"""A cold start of 150 s behind proxies that give up after 60 s without a byte."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.gateway import gateway
from benchmarks.measuring.report import Cell, Grid, Note, Part
from benchmarks.measuring.setting import LeftOut, Setting
from benchmarks.references import haproxy, nginx, servers
from tests.support import waiting
from tests.support.waiting import Heard, Scene

IDLE_S, START_S, COMMENT_AFTER_S, PAUSE_S = 60.0, 150.0, 20.0, 75.0
"""Limit of the proxies, duration of the start, `comment_after_s`, pause between two tokens."""
QUICK = (3.0, 8.0, 1.0, 4.0)
HEADS = (
    *("client", "status", "seconds", "longest silence, s", "waiting comments"),
    *("tokens", "ends as its framing says"),
)


def measure(setting: Setting) -> list[Part]:
    """Wake a function through HAProxy and nginx, by streams and by a request that is none."""
    idle_s, start_s, after_s, pause_s = (
        QUICK if setting.quick else (IDLE_S, START_S, COMMENT_AFTER_S, PAUSE_S)
    )
    if not (haproxy.program() and nginx.program()):
        raise LeftOut("HAProxy and nginx have to be installed")
    with (
        gateway(environment={"FN_STANDBYS": "0", "FN_WORKERS": "1"}) as ours,
        servers.haproxy(ours.port, idle_s=idle_s) as first,
        servers.nginx(ours.port, idle_s=idle_s) as second,
        tempfile.TemporaryDirectory(prefix="fn-waiting-") as folder,
    ):
        waiting.deploy(ours.server, Path(folder), start_s, after_s)
        ours.await_states([], sending_home=True)
        headers = {"Authorization": f"Bearer {ours.key}"}
        ports = (f"http://127.0.0.1:{one.port}" for one in (first, second))
        scene = asyncio.run(waiting.cold_start(*ports, headers, pause_s))
    return [_table(scene, idle_s, start_s), Note(f"comment_after_s = {after_s:g}")]


def _table(scene: Scene, idle_s: float, start_s: float) -> Grid:
    rows = [
        _row("stream, HAProxy", scene.stream),
        _row("stream, nginx that buffers", scene.buffered),
        _row("stream of /v1/messages, HAProxy", scene.messages),
        _row("no stream, HAProxy", scene.whole),
        _row("warm stream with pauses, HAProxy", scene.paused),
        _row("warm stream with pauses, nginx that buffers", scene.paused_buffered),
    ]
    title = f"start of {start_s:g} s behind limits of {idle_s:g} s"
    return Grid(HEADS, rows, title)


def _row(name: str, heard: Heard) -> list[Cell]:
    pings = heard.body.count(b"event: ping\n")
    return [
        name,
        str(heard.status),
        heard.arrived_s[-1],
        heard.silence_s,
        str(heard.comments + pings),
        str(heard.tokens),
        "yes" if heard.is_whole else "no",
    ]

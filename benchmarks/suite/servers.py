"""Server functions beside proxies: small calls, bodies of 1 MiB, event streams."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.gateway import Gateway, gateway
from benchmarks.loaded import P50, P99
from benchmarks.loading import generator, streams
from benchmarks.loading.call import Call, Load
from benchmarks.loading.streams import Streams
from benchmarks.measuring.processes import cpu_ms, family, memory_kb, pin
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.references import haproxy, nginx, servers

NAME = "upstream"
FNGATE, AIOHTTP, NGINX, HAPROXY = "fngate", "aiohttp proxy", "nginx", "HAProxy"
BARE = "bytes copied in Python"
"""The floor of any proxy in Python: nothing but two sockets."""
CALL_US = "us of CPU per call, all processes of the proxy"
EVENT_US = "us of CPU per event, all processes of the proxy"
STREAM_KIB = "KiB of own memory per stream"
CONNECTIONS = 16
SMALL, LARGE = b'{"prompt": "' + b"x" * 236 + b'"}', bytes(1 << 20)
STREAMS = ((300, 100, 80), (1000, 40, 250))
"""Number of streams, events of each, milliseconds between them."""
QUICK_STREAMS = ((20, 10, 20),)
SETTLE_S = 1.0
MANIFEST = """schema = 1
name = "{name}"

[server]
command = ["{python}", "upstream.py", "${{PORT}}"]
ready = "/small"

[limits]
concurrency = 1100
"""
WANTED_CALL = "ratio <= 2.5, and at most a quarter of the aiohttp proxy"
WANTED_EVENT = "ratio <= 1.5"
LOADS = (
    ("small calls", "/small", SMALL, CONNECTIONS),
    ("small calls", "/small", SMALL, 1),
    ("1 MiB there", "/take", LARGE, 4),
    ("1 MiB back", "/give", b"", 4),
)


@dataclass(frozen=True)
class Proxy:
    """A running proxy: its port, the prefix of its paths, its processes, headers for it."""

    port: int
    pids: list[int]
    prefix: str
    headers: dict[str, str]

    def call(self, path: str, body: bytes) -> Call:
        """Return a call through it."""
        headers = {**self.headers, "Content-Type": "application/octet-stream"}
        return Call(self.port, self.prefix + path, body, headers)


def measure(setting: Setting) -> list[Part]:
    """Measure CPU time per call and per event, memory per stream, and latencies."""
    with ExitStack() as stack:
        proxies, notes = _started(stack, setting)
        base = NGINX if NGINX in proxies else AIOHTTP
        # Streams first: memory that large bodies have left behind would hide theirs.
        parts = [*_all_streams(proxies, base, setting), *_all_calls(proxies, base, setting)]
    return [*parts, *notes]


def _all_streams(proxies: dict[str, Proxy], base: str, setting: Setting) -> list[Part]:
    parts: list[Part] = []
    idle_kib = {name: _memory_kib(proxy) for name, proxy in proxies.items()}
    for count, events, period_ms in QUICK_STREAMS if setting.quick else STREAMS:
        plan = Streams(0, "/sse", count, events, period_ms)
        cases: dict[str, Case] = {
            name: partial(_streams, proxy, plan, idle_kib[name], setting)
            for name, proxy in proxies.items()
        }
        record = interleaved(cases, setting.rounds)
        wanted = {EVENT_US: {FNGATE: WANTED_EVENT}} if base == NGINX else {}
        named = f"{count} streams, {count * 1000 // period_ms} events a second"
        parts += compare(record.only(EVENT_US, P50, P99), base, targets=wanted, title=named)
        # Without ratios: nginx allocates most of its memory before the first stream.
        parts += compare(record.only(STREAM_KIB), "", title=named)
    return parts


def _all_calls(proxies: dict[str, Proxy], base: str, setting: Setting) -> list[Part]:
    parts: list[Part] = []
    for title, path, body, connections in LOADS:
        cases: dict[str, Case] = {
            name: partial(_calls, proxy, Load(proxy.call(path, body), connections), setting)
            for name, proxy in proxies.items()
        }
        record = interleaved(cases, setting.rounds)
        metrics = (P50, P99) if connections == 1 else (CALL_US,)
        is_small = base == NGINX and path == "/small"
        wanted = {CALL_US: {FNGATE: WANTED_CALL}} if is_small else {}
        parts += compare(
            record.only(*metrics), base, targets=wanted, title=f"{title}, c={connections}"
        )
    return parts


def _started(stack: ExitStack, setting: Setting) -> tuple[dict[str, Proxy], list[Part]]:
    """Start every proxy that is installed, each before the same kind of server."""
    core, others = setting.cores
    ours = stack.enter_context(gateway(environment={"FN_STANDBYS": "0", "FN_WORKERS": "1"}))
    proxies = {FNGATE: proxy_of(stack, ours, setting)}
    behind = stack.enter_context(servers.upstream())
    behind.pin(others)
    made = {AIOHTTP: servers.aiohttp_proxy, BARE: servers.bare_proxy}
    made |= {NGINX: partial(servers.nginx, streams=True)} if nginx.program() else {}
    made |= {HAPROXY: servers.haproxy} if haproxy.program() else {}
    absent = [name for name in (NGINX, HAPROXY) if name not in made]
    for name, start in made.items():
        server = stack.enter_context(start(behind.port))
        server.pin(core)
        proxies[name] = Proxy(server.port, server.pids, "", {})
    return proxies, [Note(f"{name}: left out, it is not installed") for name in absent]


def proxy_of(stack: ExitStack, ours: Gateway, setting: Setting) -> Proxy:
    """Deploy the upstream as a server function and warm it up.

    The function's own process is no part of the proxy; its sidecar is.
    """
    bundle = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fn-upstream-")))
    source = Path(__file__).parent.parent / "references" / "upstream.py"
    (bundle / source.name).write_text(source.read_text())
    (bundle / "function.toml").write_text(MANIFEST.format(name=NAME, python=sys.executable))
    ours.server.fnctl_json("deploy", str(bundle), "--trust", "--min", "1")
    headers = {"Authorization": f"Bearer {ours.key}"}
    call = Call(ours.port, f"/fn/{NAME}/small", SMALL, headers)
    generator.once(call, setting.cores[1])
    sidecars = ours.server.replica_pids()
    functions = {pid for sidecar in sidecars for pid in family(sidecar) if _is_upstream(pid)}
    core, others = setting.cores
    pids = sorted({*ours.pids, *sidecars} - functions)
    pin(pids, core)
    pin(functions, others)
    return Proxy(ours.port, pids, f"/fn/{NAME}", headers)


def _is_upstream(pid: int) -> bool:
    try:
        return b"upstream.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _calls(proxy: Proxy, load: Load, setting: Setting) -> Figures:
    load = replace(load, seconds=setting.load_s)
    before = cpu_ms(proxy.pids)
    loaded = generator.run(load, setting.cores[1])
    used_us = (cpu_ms(proxy.pids) - before) * 1e3
    return {CALL_US: used_us / loaded.requests, P50: loaded.p50_ms, P99: loaded.p99_ms}


def _streams(proxy: Proxy, plan: Streams, idle_kib: int, setting: Setting) -> Figures:
    """Run the streams; memory is compared in their middle with that before any of them."""
    path = f"{proxy.prefix}{plan.path}"
    plan = replace(plan, port=proxy.port, path=path, headers=proxy.headers)
    before = cpu_ms(proxy.pids)
    with generator.planned(plan, setting.cores[1]) as process:
        time.sleep(0.1 if setting.quick else max(SETTLE_S, plan.seconds / 2))
        during_kib = _memory_kib(proxy)
        found = streams.figures(process, plan)
    used_us = (cpu_ms(proxy.pids) - before) * 1e3
    return {
        EVENT_US: used_us / found.events,
        P50: found.p50_ms,
        P99: found.p99_ms,
        STREAM_KIB: (during_kib - idle_kib) / plan.count,
    }


def _memory_kib(proxy: Proxy) -> int:
    return sum(memory_kb(pid)["uss"] for pid in proxy.pids)

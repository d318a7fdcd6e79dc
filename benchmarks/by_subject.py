"""CPU time of the gateway by subject: `python -m benchmarks.by_subject [--seconds 10] [--md FILE]`.

For a warm call of a tiny model, a small call of a server function, an event of its stream, and a
chunk and a call of /v1: the microseconds of CPU of the server's process, split by a sampler in the
process (`benchmarks.sampled`) over the subjects of SUBJECTS.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.gateway import ALLOCATOR, Gateway, gateway
from benchmarks.loading import chats, generator, streams
from benchmarks.loading.call import Load
from benchmarks.loading.streams import Streams
from benchmarks.measuring.processes import cpu_ms
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.suite import chat
from benchmarks.suite.servers import SMALL, proxy_of

PROGRAM: Final = (sys.executable, "-m", "benchmarks.sampled")
SUBJECTS: Final = {
    "head": (
        *("gateway/http/plain_heads", "gateway/http/known_heads", "gateway/http/head_memory"),
        *("gateway/proxy/request_head", "gateway/proxy/fields", "gateway/proxy/response_head"),
    ),
    "admission": ("gateway/admission/", "registry/"),
    "connection": ("gateway/http/fast_path", "gateway/http/exchange_client", "gateway/http/conn"),
    "call": ("gateway/http/invocation",),
    "dispatch": ("gateway/dispatch/", "gateway/delivery"),
    "links": (
        *("gateway/data_links", "gateway/server_links", "gateway/links", "gateway/upstream"),
        *("gateway/shared_memory", "gateway/server_sockets", "gateway/socket_channel"),
    ),
    "exchange": ("gateway/proxy/",),
    "/v1": ("gateway/v1/", "gateway/http/models/"),
    "counters": ("gateway/metrics/", "gateway/http/connected", "admin/history", "admin/usage"),
    "log event": ("gateway/observing/", "gateway/http/exchange_journal"),
    "writes": ("gateway/replies", "gateway/unsent", "gateway/problems"),
    "loop": ("loop", "admin/serve"),
}
"""Beginnings of the places of each subject; the first that fits counts."""
OTHER: Final = "other"
WARM, PROXIED, EVENT = "warm call", "proxied call", "event"
CHUNK, CHAT = "/v1 chunk", "/v1 call"
CONNECTIONS: Final = 64
WAIT_S: Final = 10.0
TOP: Final = 5


def subject_of(place: str) -> str:
    """Return the subject of a sampled place."""
    for name, beginnings in SUBJECTS.items():
        if place.startswith(beginnings):
            return name
    return OTHER


def split(samples: dict[str, int], us: float) -> dict[str, float]:
    """Return the microseconds of each subject; `us`: those of all samples."""
    whole = sum(samples.values()) or 1
    found = dict.fromkeys((*SUBJECTS, OTHER), 0.0)
    for place, count in samples.items():
        found[subject_of(place)] += us * count / whole
    return found


def table(figures: dict[str, dict[str, float]]) -> list[str]:
    """Return the rows of the table: subjects by kind of work."""
    kinds = list(figures)
    lines = [f"| us of CPU | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for name in (*SUBJECTS, OTHER):
        values = " | ".join(f"{figures[kind][name]:.1f}" for kind in kinds)
        lines.append(f"| {name} | {values} |")
    sums = " | ".join(f"{sum(figures[kind].values()):.1f}" for kind in kinds)
    return [*lines, f"| all | {sums} |"]


class Sampler:
    """The samples of one server's main process."""

    def __init__(self, ours: Gateway, file: Path) -> None:
        assert ours.server.process is not None
        self._pid = ours.server.process.pid
        self._file = file

    def take(self) -> dict[str, int]:
        """Return the samples since the last call."""
        self._file.unlink(missing_ok=True)
        os.kill(self._pid, signal.SIGUSR2)
        until = time.monotonic() + WAIT_S
        while not self._file.exists():
            if time.monotonic() > until:
                raise TimeoutError("the server wrote no samples")
            time.sleep(0.01)
        found: dict[str, int] = json.loads(self._file.read_text())
        return found

    def measure(self, load: Callable[[], float]) -> tuple[float, dict[str, int]]:
        """Return the microseconds of one unit of a load, which returns their number, and the
        samples."""
        self.take()
        before = cpu_ms([self._pid])
        units = load()
        return (cpu_ms([self._pid]) - before) / units * 1e3, self.take()


def measured(seconds: int, setting: Setting) -> dict[str, tuple[float, dict[str, int]]]:
    """Return microseconds and samples by kind of work."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "samples"
        environment = {**ALLOCATOR, "FN_STANDBYS": "0", "FN_CPU_SLOTS": "8", "FN_WORKERS": "1"}
        environment["BENCH_SAMPLES"] = str(file)
        ours = stack.enter_context(gateway(environment=environment, program=PROGRAM))
        tiny, sampler = subjects.tiny(setting.models), Sampler(ours, file)
        ours.deploy(tiny, "--min", "1")
        ours.call_ms(tiny)
        proxy = proxy_of(stack, ours, setting)
        edited = chat.proxies_of(stack, ours, setting)[list(chat.FUNCTIONS)[-1]]
        ours.pin(setting)
        cores = setting.cores[1]
        small = Load(proxy.call("/small", SMALL), CONNECTIONS, seconds)
        plan = Streams(proxy.port, f"{proxy.prefix}/sse", CONNECTIONS, 100, 20, proxy.headers)
        shape = (CONNECTIONS, 100, 20, 1)
        asked = replace(edited.plan, tokens=chat.TOKENS).call(is_stream=False)
        whole, calls = (
            Load(asked, CONNECTIONS, seconds),
            Load(ours.call(tiny), CONNECTIONS, seconds),
        )
        loads: dict[str, Callable[[], float]] = {
            WARM: lambda: generator.run(calls, cores).requests,
            PROXIED: lambda: generator.run(small, cores).requests,
            EVENT: lambda: _events(plan, cores),
            CHUNK: lambda: chats.run(edited.streams(shape), cores).tokens,
            CHAT: lambda: generator.run(whole, cores).requests,
        }
        found = {}
        for name, load in loads.items():
            load()  # what is warm is measured
            found[name] = sampler.measure(load)
        return found


def _events(plan: Streams, cores: set[int]) -> int:
    with generator.planned(plan, cores) as process:
        return streams.figures(process, plan).events


def main() -> None:
    """Print the table, and the places that take most."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.by_subject")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--md", type=Path)
    given = parser.parse_args()
    found = measured(given.seconds, Setting())
    lines = table({name: split(samples, us) for name, (us, samples) in found.items()})
    for name, (us, samples) in found.items():
        whole = sum(samples.values()) or 1
        most = Counter(samples).most_common(TOP)
        places = ", ".join(f"`{place}` {us * count / whole:.1f}" for place, count in most)
        lines += ["", f"{name}, {sum(samples.values())} samples: {places}"]
    text = "\n".join(lines)
    print(text)
    if given.md is not None:
        given.md.write_text(f"{text}\n")


if __name__ == "__main__":
    main()

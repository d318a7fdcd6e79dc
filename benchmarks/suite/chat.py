"""Chats through /v1, beside the plain proxy to the same server and LiteLLM's proxy."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.gateway import Gateway, gateway
from benchmarks.loaded import P50
from benchmarks.loading import chats, generator
from benchmarks.loading.call import Load
from benchmarks.loading.chats import Chats
from benchmarks.measuring.processes import cpu_ms, family, pin
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.references import chat_upstream, litellm, servers

PLAIN, LITELLM = "plain proxy, /fn/NAME/v1", "LiteLLM's proxy"
FUNCTIONS = {
    "/v1": ("read", 'usage = "as_sent"'),
    "/v1, served_model": ("named", 'usage = "as_sent"\nserved_model = "served/model-7b"'),
    "/v1, usage": ("asked", 'usage = "ask"'),
    "/v1, served_model and usage": ("both", 'usage = "ask"\nserved_model = "served/model-7b"'),
}
"""Functions of /v1 by what is measured: name, and settings of the table [openai]."""
CALL_US = "us of CPU per call, gateway"
CHUNK_US = "us of CPU per chunk, gateway"
FIRST_MS, DELAY_MS = "ms to the first token, p50", "ms of delay per token, p99"
WANTED_CHUNK = "ratio <= 1.5"
PATH = "/v1/chat/completions"
STREAMS = ((1, 200, 5, 1), (16, 100, 20, 2), (64, 100, 50, 1), (1000, 10, 1000, 1))
"""Streams at once, tokens of each, milliseconds between them, streams one after the other."""
QUICK_STREAMS = ((4, 5, 5, 1),)
FIRSTS = (1, 1, 0, 200)
"""Streams of one token one after the other: the time to it, and the cost of a stream's ends."""
CONNECTIONS = (1, 16, 64)
CROWDED = 4
"""Times as long is the load of the most connections: LiteLLM's proxy may answer none in 2 s."""
TOKENS = 20
"""Tokens of an answer that is no stream."""
MANIFEST = """schema = 1
name = "{name}"

[server]
command = ["{python}", "chat_upstream.py", "${{PORT}}"]

[openai]
{settings}

[limits]
concurrency = 1100
queue = 2000
"""


@dataclass(frozen=True)
class Proxy:
    """A proxy to measure. `plan` names its port, path, model and headers."""

    pids: list[int]
    plan: Chats

    def streams(self, shape: tuple[int, int, int, int]) -> Chats:
        """Return a load of streams."""
        count, tokens, period_ms, each = shape
        return replace(self.plan, count=count, tokens=tokens, period_ms=period_ms, each=each)


def measure(setting: Setting) -> list[Part]:
    """Measure CPU time per chunk and per call, and times to the first token."""
    with ExitStack() as stack:
        ours = stack.enter_context(
            gateway("--cpu-slots", "8", environment={"FN_STANDBYS": "0", "FN_WORKERS": "1"})
        )
        proxies, notes = proxies_of(stack, ours, setting), []
        try:
            proxies[LITELLM] = _litellm(stack, setting)
        except RuntimeError as error:
            notes = [Note(f"{LITELLM}: left out: {error}")]
        parts = _streamed(proxies, setting)
        if shutil.which("wrk") is None:  # the built-in generator reads no chunked answers
            return [*parts, *notes, Note("answers that are no streams: left out without wrk")]
        return [*parts, *_called(proxies, setting), *notes]


def proxies_of(stack: ExitStack, ours: Gateway, setting: Setting) -> dict[str, Proxy]:
    """Deploy the same server with each setting, and wake all."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fn-chats-")))
    headers = {"Authorization": f"Bearer {ours.key}"}
    core, others = setting.cores
    plans = {}
    for case, (name, settings) in FUNCTIONS.items():
        bundle = folder / name
        bundle.mkdir()
        source = Path(chat_upstream.__file__)
        (bundle / source.name).write_text(source.read_text())
        manifest = MANIFEST.format(name=name, python=sys.executable, settings=settings)
        (bundle / "function.toml").write_text(manifest)
        ours.server.fnctl_json("deploy", str(bundle), "--trust", "--min", "1")
        plans[case] = Chats(ours.port, PATH, name, 1, 1, 0, headers=headers)
        chats.run(plans[case], others)
    first, _ = FUNCTIONS["/v1"]
    plain = Chats(ours.port, f"/fn/{first}{PATH}", first, 1, 1, 0, headers=headers)
    pids = ours.pids
    pin(pids, core)
    for sidecar in ours.server.replica_pids():
        pin(family(sidecar), others)
    return {case: Proxy(pids, plan) for case, plan in {PLAIN: plain, **plans}.items()}


def _litellm(stack: ExitStack, setting: Setting) -> Proxy:
    """Run LiteLLM's proxy in front of the same kind of server."""
    core, others = setting.cores
    behind = stack.enter_context(servers.chat_upstream())
    behind.pin(others)
    name, _ = FUNCTIONS["/v1"]
    server = stack.enter_context(servers.litellm(behind.port, name))
    server.pin(core)
    headers = {"Authorization": f"Bearer {litellm.KEY}"}
    plan = Chats(server.port, PATH, name, 1, 1, 0, headers=headers)
    chats.run(plan, others)  # its first stream imports
    return Proxy(server.pids, plan)


def _streamed(proxies: dict[str, Proxy], setting: Setting) -> list[Part]:
    parts: list[Part] = []
    for shape in QUICK_STREAMS if setting.quick else STREAMS:
        cases: dict[str, Case] = {
            name: partial(streams, proxy, shape, setting) for name, proxy in proxies.items()
        }
        count, tokens, period_ms, _ = shape
        title = f"{count} streams of {tokens} tokens, one in {period_ms} ms"
        record = interleaved(cases, setting.rounds)
        wanted = {CHUNK_US: dict.fromkeys(FUNCTIONS, WANTED_CHUNK)}
        parts += compare(record.only(CHUNK_US, DELAY_MS), PLAIN, targets=wanted, title=title)
    shape = (1, 1, 0, 5) if setting.quick else FIRSTS
    cases = {name: partial(firsts, proxy, shape, setting) for name, proxy in proxies.items()}
    record = interleaved(cases, setting.rounds)
    return [*parts, *compare(record, PLAIN, title="streams of one token, one after the other")]


def _called(proxies: dict[str, Proxy], setting: Setting) -> list[Part]:
    parts: list[Part] = []
    for connections in CONNECTIONS[:1] if setting.quick else CONNECTIONS:
        cases: dict[str, Case] = {
            name: partial(_calls, proxy, connections, setting) for name, proxy in proxies.items()
        }
        record = interleaved(cases, setting.rounds)
        metrics = (CALL_US, P50) if connections == 1 else (CALL_US,)
        title = f"answers that are no streams, c={connections}"
        parts += compare(record.only(*metrics), PLAIN, title=title)
    return parts


def streams(proxy: Proxy, shape: tuple[int, int, int, int], setting: Setting) -> Figures:
    before = cpu_ms(proxy.pids)
    found = chats.run(proxy.streams(shape), setting.cores[1])
    used_us = (cpu_ms(proxy.pids) - before) * 1e3
    return {CHUNK_US: used_us / found.tokens, DELAY_MS: found.delay_p99_ms}


def firsts(proxy: Proxy, shape: tuple[int, int, int, int], setting: Setting) -> Figures:
    before = cpu_ms(proxy.pids)
    found = chats.run(proxy.streams(shape), setting.cores[1])
    used_us = (cpu_ms(proxy.pids) - before) * 1e3
    return {FIRST_MS: found.first_p50_ms, CALL_US: used_us / found.whole}


def _calls(proxy: Proxy, connections: int, setting: Setting) -> Figures:
    call = replace(proxy.plan, tokens=TOKENS).call(is_stream=False)
    before = cpu_ms(proxy.pids)
    seconds = setting.load_s * (CROWDED if connections == CONNECTIONS[-1] else 1)
    loaded = generator.run(Load(call, connections, seconds), setting.cores[1])
    used_us = (cpu_ms(proxy.pids) - before) * 1e3
    return {CALL_US: used_us / loaded.requests, P50: loaded.p50_ms}

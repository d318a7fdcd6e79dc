"""Ten thousand cold functions, against a store with one function in the same run."""

from __future__ import annotations

import http.client
import itertools
import json
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.deciding import decisions_ms, put_us
from benchmarks.filling import fill, name
from benchmarks.measuring.processes import cpu_ms, memory_kb
from benchmarks.measuring.report import Grid, Part
from benchmarks.measuring.setting import Setting
from tests.support.process_server import ServerProcess, server_process

COUNT = 10_000
QUICK_COUNT = 200
STARTS = 3
ROUNDS = 5
IDLE_S = 5.0
UNKNOWN = 20
GOOD = b'{"inputs": {"image": [' + str([[0.5] * 8] * 8).encode() + b"]}}"
BAD = b'{"inputs": {}}'


def measure(setting: Setting) -> list[Part]:
    """Return one table: each case with one function and with all functions."""
    count = QUICK_COUNT if setting.quick else COUNT
    with tempfile.TemporaryDirectory(prefix="fn-") as folder:
        one, many = Path(folder, "one"), Path(folder, "many")
        with server_process(one) as server:
            server.fnctl_json("deploy", "functions/digits", "--idle", "0.05")
        shutil.copytree(one, many)
        fill(many, count)
        rows = {**measured(one, many, count), "catalog put, us": (put_us(1), put_us(count))}
        for active in (0, 50):
            small, large = (decisions_ms(pools, active) for pools in (max(1, active), count))
            rows[f"one tick with {active} pools active, ms"] = (small[0], large[0])
            rows[f"the start of one more with {active} pools active, ms"] = (small[1], large[1])
    heads = ("case", "1 function", f"{count + 1} functions", "difference")
    return [Grid(heads, [(case, few, more, more - few) for case, (few, more) in rows.items()])]


def measured(one: Path, many: Path, count: int) -> dict[str, tuple[float, float]]:
    """Return the figures of servers with the two folders, by case."""
    starts_one, starts_many = [], []
    for _ in range(STARTS):
        starts_one.append(start_ms(one))
        starts_many.append(start_ms(many))
    rows = {"from process start to accepting calls, ms": pair(starts_one, starts_many)}
    with ExitStack() as stack:
        servers = [stack.enter_context(server_process(data)) for data in (one, many)]
        for case, run in cases(count).items():
            few, more = (run(server) for server in servers)
            rows[case] = (few, more)
            if case.startswith("memory"):
                rows[f"{case}, kB per function"] = (0.0, (more - few) / count * 1000)
    return rows


def pair(few: list[float], more: list[float]) -> tuple[float, float]:
    """Return both medians."""
    return statistics.median(few), statistics.median(more)


def start_ms(data: Path) -> float:
    """Return the milliseconds until a new server accepts calls; stop the server."""
    server = ServerProcess(data)
    began = time.perf_counter()
    server.start()
    taken_ms = (time.perf_counter() - began) * 1e3
    server.stop()
    return taken_ms


def cases(count: int) -> dict[str, Callable[[ServerProcess], float]]:
    """Return the measurements of a running server, in order."""
    last = name(count - 1)
    return {
        "the same in CPU time, ms": start_cpu_ms,
        "memory (PSS) after the start, MB": pss_mb,
        "CPU while nothing happens, ms per s": idle_cpu,
        "fnctl ls, ms": lambda server: fnctl_ms(server, "ls"),
        "fnctl ls --json, ms": lambda server: fnctl_ms(server, "ls", "--json"),
        "fnctl ls in CPU time, ms": lambda server: fnctl_cpu_ms(server, "ls"),
        "fnctl ls --json in CPU time, ms": lambda server: fnctl_cpu_ms(server, "ls", "--json"),
        "GET /admin/v1/functions, one page, ms": lambda server: get_ms(
            server, "/admin/v1/functions"
        ),
        "GET /admin/v1/pools, one page, ms": lambda server: get_ms(server, "/admin/v1/pools"),
        "GET /metrics, ms": lambda server: get_ms(server, "/metrics"),
        "GET /metrics, kB": metrics_kb,
        "a call of an unknown function (404), ms": unknown_ms,
        "a cold call, ms": lambda server: cold_ms(server, last if many_in(server) else "digits"),
        "fnctl deploy of one more, ms": deploy_ms,
        "each function called once with bad input (400), ms per call": lambda server: name_all_ms(
            server, [name(number) for number in range(count)] if many_in(server) else ["digits"]
        ),
        "memory (PSS) after that, MB": pss_mb,
        "GET /metrics after that, ms": lambda server: get_ms(server, "/metrics"),
        "GET /metrics after that, kB": metrics_kb,
    }


def many_in(server: ServerProcess) -> bool:
    """Whether this is the server with many functions."""
    return server.data.name == "many"


def pss_mb(server: ServerProcess) -> float:
    """Return the server's PSS in megabytes, without its replicas."""
    assert server.process is not None
    return memory_kb(server.process.pid)["pss"] * 1024 / 1e6


def start_cpu_ms(server: ServerProcess) -> float:
    """Return the CPU milliseconds used so far; to be measured right after the start."""
    assert server.process is not None
    return cpu_ms([server.process.pid])


def idle_cpu(server: ServerProcess) -> float:
    """Return the CPU milliseconds per second of an idle server."""
    assert server.process is not None
    before = cpu_ms([server.process.pid])
    time.sleep(IDLE_S)
    return (cpu_ms([server.process.pid]) - before) / IDLE_S


def median_ms(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Return the median duration of several runs in milliseconds."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def fnctl_ms(server: ServerProcess, *words: str) -> float:
    """Return the duration of a whole fnctl process, which must succeed."""

    def run() -> None:
        done = server.fnctl(*words)
        assert done.returncode == 0, done.stderr

    return median_ms(run)


def fnctl_cpu_ms(server: ServerProcess, *words: str) -> float:
    """Return the CPU milliseconds of such a process and of the server that answers it."""

    def used_s() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert server.process is not None
        return children.ru_utime + children.ru_stime + cpu_ms([server.process.pid]) / 1e3

    before_s = used_s()
    for _ in range(ROUNDS):
        server.fnctl(*words)
    return (used_s() - before_s) / ROUNDS * 1e3


class Connection:
    """One keep-alive connection to a server, with an administrator's rights."""

    def __init__(self, server: ServerProcess) -> None:
        self._http = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=600)
        self._headers = {"Content-Type": "application/json", **server.headers}

    def ask(self, method: str, path: str, body: bytes | None, status: int) -> bytes:
        """Send a request and return the answer's body; its status must be `status`."""
        self._http.request(method, path, body, self._headers)
        response = self._http.getresponse()
        data = response.read()
        assert response.status == status, (path, response.status, data[:300])
        return data


def get_ms(server: ServerProcess, path: str) -> float:
    """Return the duration of one GET over an open connection."""
    connection = Connection(server)
    return median_ms(lambda: connection.ask("GET", path, None, 200))


def metrics_kb(server: ServerProcess) -> float:
    """Return the size of the metrics page."""
    return len(Connection(server).ask("GET", "/metrics", None, 200)) / 1000


def unknown_ms(server: ServerProcess) -> float:
    """Return the duration of a call of an unknown function with a similar name."""
    connection = Connection(server)
    return median_ms(lambda: connection.ask("POST", "/fn/copy-of-digit-1", GOOD, 404), UNKNOWN)


def cold_ms(server: ServerProcess, function: str) -> float:
    """Return the duration of a call without a replica."""
    connection = Connection(server)
    taken = []
    for _ in range(ROUNDS):
        while server.replica_pids("serve"):
            time.sleep(0.05)
        began = time.perf_counter()
        connection.ask("POST", f"/fn/{function}", GOOD, 200)
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def deploy_ms(server: ServerProcess) -> float:
    """Return the duration of a deploy of a known model, which needs no trial."""
    numbers = itertools.count()

    def run() -> None:
        server.fnctl_json("deploy", "functions/digits", "--name", f"more-{next(numbers)}")

    return median_ms(run)


def name_all_ms(server: ServerProcess, names: list[str]) -> float:
    """Return the time per call when each function is called once, with input that starts
    nothing."""
    connection = Connection(server)
    began = time.perf_counter()
    for function in names:
        problem = json.loads(connection.ask("POST", f"/fn/{function}", BAD, 400))
        assert problem["code"] == "bad_input"
    return (time.perf_counter() - began) / len(names) * 1e3

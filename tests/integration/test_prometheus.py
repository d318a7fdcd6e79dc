"""Tests of a real Prometheus server that scrapes real replicas under load, some of them killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pool_manager.core.health.liveness import Cause
from tests.support import chat_server, models, promql
from tests.support.doses import amount
from tests.support.fake_driver.opening import PROGRAM
from tests.support.families import families
from tests.support.freezing import frozen
from tests.support.own_engine import await_condition
from tests.support.process_server import ServerProcess, server_process
from tests.support.prometheus import Prometheus, program, scraping
from tests.support.worker_server import lines, worker_pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ONE: dict[str, Any] = {"x": [[1, 0, 0, 0]]}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
CALLERS = 4
QUIET, LOADED = 3, amount(4, 6)
"""Number of scrapes before and after the load, and between two faults."""
LOOK_S = 0.05
"""Seconds between two questions for the number of scrapes."""
SLOW = {
    "function.toml": """schema = 1
[runtime]
engine = "python"
[input.x]
dtype = "FP32"
shape = [-1, 4]
""",
    "handler.py": """import threading

def predict(inputs, ctx):
    threading.Event().wait(0.1)
    return {"y": inputs["x"]}
""",
}
"""A function that takes a tenth of a second and no CPU, also when it is deployed."""


def connected(server: ServerProcess) -> http.client.HTTPConnection:
    """Open a connection to any gateway process."""
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)


def ask(server: ServerProcess, path: str, document: Any = None) -> bytes:
    """Return an administrator's answer, to a POST with a document or to a GET, over a connection of
    its own."""
    method, body = ("GET", None) if document is None else ("POST", json.dumps(document))
    with contextlib.closing(connected(server)) as connection:
        connection.request(method, path, body, headers=server.headers)
        with connection.getresponse() as answer:
            assert answer.status == 200
            return answer.read()


OF_GPUS = (
    "fngate_device_memory_used_bytes",
    "fngate_device_utilization_ratio",
    "fngate_device_power_watts",
    "fngate_device_xid_errors_total",
    "fngate_function_energy_joules_total",
)
KILLS_MAX = 5
OF_MOMENTS = ("fngate_held", "fngate_in_flight")
"""Families that have series only for pools with held or running requests."""
OF_SERVERS = ("fngate_golden_samples_total", "fngate_wakes_total")
"""Families that have series only for servers with golden samples, and for those that are parked."""
OF_OTHER_HOSTS = (
    "fngate_host_disk_free_bytes",
    "fngate_host_files_bytes",
    "fngate_host_rtt_seconds",
    "fngate_host_transferred_bytes_total",
    "fngate_link_refusals_total",
)


class Load:
    """Calls of two functions from several threads until the block ends; `statuses` collects the
    results."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._over = threading.Event()
        self.statuses: set[int] = set()
        self.cut_off = 0
        self._threads = [
            threading.Thread(target=self._call, args=(number,), daemon=True)
            for number in range(CALLERS)
        ]

    def _call(self, number: int) -> None:
        while not self._over.is_set():
            with contextlib.closing(connected(self._server)) as connection:
                try:
                    self._calls(connection, number)
                except (OSError, http.client.HTTPException):
                    self.cut_off += 1

    def _calls(self, connection: http.client.HTTPConnection, number: int) -> None:
        """Call the quick function with a trace, or the slow one without any wait budget."""
        name, headers = ("quick", TRACED) if number % 2 else ("slow", {"Prefer": "wait=0"})
        headers = {"Content-Type": "application/json", **headers}
        while not self._over.is_set():
            connection.request("POST", f"/fn/{name}", json.dumps({"inputs": ONE}), headers)
            with connection.getresponse() as answer:
                answer.read()
                self.statuses.add(answer.status)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Call while the block runs."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(60)


def deploy(server: ServerProcess, folder: Path) -> None:
    """Deploy a quick function, a slow one, and a server function and a model that have answered
    once."""
    command = "python3 -m http.server --bind 127.0.0.1 ${PORT}"
    server.fnctl_json("deploy", "--name", "web", "--command", command, "--trust")
    ask(server, "/fn/web/")
    chat_server.deploy(server, folder, "model")
    said = {"role": "user", "content": "[tokens=3] [rate=100]"}
    ask(server, "/v1/chat/completions", {"model": "model", "stream": True, "messages": [said]})
    server.fnctl_json("deploy", str(models.affine(folder, 2, 0)), "--name", "quick")
    slow = folder / "slow"
    slow.mkdir()
    for name, text in SLOW.items():
        (slow / name).write_text(text)
    server.fnctl_json("deploy", str(slow), "--name", "slow", "--trust")


def wait_scrapes(prometheus: Prometheus, count: int) -> None:
    """Wait for this many more scrapes; one that meets a dying process may fail."""
    until = prometheus.scrapes() + count
    while prometheus.scrapes() < until:
        threading.Event().wait(LOOK_S)


def kill_worker(server: ServerProcess) -> None:
    """Kill a gateway process that has accepted a request, which frozen replicas cannot answer."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(lines(server, each=2))
        victim = found[0].pid
        caller, asker = (line for line in found if line.pid == victim)
        for pid in server.replica_pids("serve"):
            stack.enter_context(frozen(pid))
        caller.send("POST", "/fn/slow", {"inputs": ONE})
        # The event loop reads the request no later than in the turn that reads the first question:
        # the second one is answered after it.
        for _ in range(2):
            assert asker.ask("GET", "/healthz")[0] == 200
        os.kill(victim, signal.SIGKILL)


def run(server: ServerProcess, prometheus: Prometheus) -> Load:
    """Run the phases: quiet, load with faults, quiet."""
    wait_scrapes(prometheus, QUIET)
    with Load(server).running() as load:
        wait_scrapes(prometheus, LOADED)
        for _ in range(KILLS_MAX):
            for pid in server.replica_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            wait_scrapes(prometheus, LOADED)
            if prometheus.series("fngate_retries_total"):
                break  # a replica had a call when it was killed
        assert server.process is not None
        if worker_pids(server.process.pid):
            kill_worker(server)
        wait_scrapes(prometheus, LOADED)
    wait_scrapes(prometheus, QUIET)
    return load


def check_ledger(prometheus: Prometheus) -> dict[str, float]:
    """Check that at every scrape accepted requests equal those ended, held and in flight; return
    the last numbers of ended requests by outcome."""
    [accepted] = prometheus.series("fngate_accepted_total").values()
    ended = prometheus.series("fngate_ended_total")
    unended = prometheus.series("fngate_open_requests")
    assert len(accepted) >= 2 * QUIET + 3 * LOADED
    missing = {
        at: all_ - sum(one[at] for one in [*ended.values(), *unended.values()])
        for at, all_ in accepted.items()
    }
    assert {at: count for at, count in missing.items() if count} == {}
    values = [accepted[at] for at in sorted(accepted)]
    assert values == sorted(values)
    assert any(max(one.values()) for one in unended.values())
    last = max(accepted)
    assert [one[last] for one in unended.values()] == [0, 0]
    [record] = prometheus.series("fngate:ledger_missing:requests").values()
    assert set(record.values()) == {0}
    return {how: one[last] for (how,), one in ended.items()}


def check_names(prometheus: Prometheus) -> None:
    """Check that every metric of dashboard and rules was scraped. Of metrics of GPUs and of other
    hosts, and of gauges with series only at times, the family's metadata is enough."""
    seen = set(prometheus.get("label/__name__/values"))
    expressions = [*promql.queries(), *(rule.expression for rule in promql.rules())]
    asked = {name for expression in expressions for name in promql.names(expression)}
    told = set(prometheus.get("metadata"))
    unseen = asked - seen

    # The metadata of a counter has the name of its family.
    assert {name for name in unseen if not {name, name.removesuffix("_total")} & told} == set()
    assert unseen <= {*OF_GPUS, *OF_MOMENTS, *OF_SERVERS, *OF_OTHER_HOSTS}
    ours = {one.name for one in families()}
    assert {name for name in seen if name.startswith("fngate_")} <= {
        sample for one in families() for sample in one.samples
    }
    assert ours


def check_rules(prometheus: Prometheus) -> None:
    """Evaluate every rule and every panel's query without an error."""
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(promql.rules())
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    firing = {
        rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"
    }
    assert "FngateLedgerDoesNotBalance" not in firing
    for query in promql.queries():
        asked = query.replace("$__rate_interval", "1m").replace('"$instance"', '".*"')
        prometheus.get("query", query=asked.replace('"$function"', '".*"'))


def check_target(prometheus: Prometheus) -> None:
    """Check that no sample of the target was refused, and that exemplars have the trace."""
    [target] = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.own("prometheus_target_scrapes_sample_duplicate_timestamp_total") == 0
    assert prometheus.own("prometheus_target_scrapes_sample_out_of_order_total") == 0
    start = str(min(next(iter(prometheus.series("fngate_accepted_total").values()))))
    found = prometheus.get(
        "query_exemplars", query="fngate_request_seconds_bucket", start=start, end="9999999999"
    )
    labels = [exemplar["labels"] for one in found for exemplar in one["exemplars"]]
    assert {"trace_id": TRACE} in [{"trace_id": one.get("trace_id")} for one in labels]


@pytest.mark.parametrize("workers", [1, 2])
def test_prometheus_sees_a_balanced_ledger_under_faults(tmp_path: Path, workers: int) -> None:
    """Ledger, names and rules are right at every scrape, while replicas and a gateway process are
    killed under load."""
    program("prometheus")
    options = ("--cpu-slots", "2", "--workers", str(workers))
    # Replicas report their runs when they are pinged; here some live for two seconds only.
    environment = {"FN_PING_S": "0.5"}
    with server_process(tmp_path / "data", *options, environment=environment) as server:
        deploy(server, tmp_path)
        with scraping(tmp_path / "prometheus", server.url) as prometheus:
            load = run(server, prometheus)
            ended = check_ledger(prometheus)
            check_names(prometheus)
            check_rules(prometheus)
            check_target(prometheus)

    assert 200 in load.statuses
    assert ended["completed"] > 20
    assert ended["expired"] > 0
    assert (ended["aborted"] > 0) == (workers > 1)
    # With several workers only the connections of `kill_worker` may have been cut off.
    assert workers > 1 or load.cut_off == 0


DEAD = """
import http.server, sys, threading, time

class App(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if self.path == "/refuse":
            threading.Thread(target=stop, daemon=True).start()

def stop():
    server.shutdown()
    server.socket.close()

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App)
server.serve_forever()
time.sleep(600)
"""
"""A server that stops listening when it is asked to."""
REPLACED = "fngate_replicas_replaced_total"


def test_the_first_replacement_of_a_server_is_an_increase(tmp_path: Path) -> None:
    """Its series begins with 0, before there is any replacement; so the alert fires."""
    program("prometheus")
    folder = tmp_path / "dead"
    folder.mkdir()
    (folder / "app.py").write_text(DEAD)
    (folder / "function.toml").write_text("""schema = 1
name = "dead"
[server]
command = "python3 app.py ${PORT}"
ready = "/up"
""")
    with server_process(tmp_path / "data") as server:
        server.fnctl_json("deploy", str(folder), "--trust")
        with scraping(tmp_path / "prometheus", server.url) as prometheus:
            ask(server, "/fn/dead/")
            wait_scrapes(prometheus, 2)
            before = prometheus.series(REPLACED)
            ask(server, "/fn/dead/refuse")
            # One call meets the refused connection, which is the reason to probe.
            with contextlib.closing(connected(server)) as connection:
                connection.request("GET", "/fn/dead/")
                connection.getresponse().read()
            await_condition(lambda: is_firing(prometheus, "FngateServersReplaced"), "no alert")
            after = prometheus.series(REPLACED)

    causes = {("dead", "default", str(one)) for one in Cause}
    assert before.keys() == causes
    assert {value for one in before.values() for value in one.values()} == {0}
    assert max(after["dead", "default", "refused"].values()) == 1


def is_firing(prometheus: Prometheus, alert: str) -> bool:
    """Return whether an alert fires."""
    return any(
        one["labels"]["alertname"] == alert and one["state"] == "firing"
        for one in prometheus.get("alerts")["alerts"]
    )


def test_the_page_and_the_rules_are_as_prometheus_wants_them(tmp_path: Path) -> None:
    """promtool accepts the names of the metrics and every rule."""
    promtool = program("promtool")
    with server_process(tmp_path / "data", program=PROGRAM) as server:
        page = ask(server, "/metrics")
    for command, given in ((["metrics"], page), (["rules", str(promql.RULES)], None)):
        done = subprocess.run(
            [promtool, "check", *command], input=given, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), done.stdout

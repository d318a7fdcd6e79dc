"""Script, command line and output of wrk."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.loading.call import Call, Load, Loaded

TIMEOUT_S = 60
REPORT = """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nfigures {"requests": %d, "us": %d, "p50_us": %.1f, "p99_us": %.1f, "errors": %d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def script(call: Call, body: Path) -> str:
    """Return the Lua script: repeats one call with its body from a file, prints the figures."""
    headers = {"Content-Type": "application/json", **call.headers}
    lines = [
        'wrk.method = "POST"',
        f"local file = io.open({_quoted(str(body))}, 'rb')",
        'wrk.body = file:read("*a")',
        "file:close()",
        *(f"wrk.headers[{_quoted(name)}] = {_quoted(value)}" for name, value in headers.items()),
    ]
    return "\n".join(lines) + REPORT


def command(wrk: str, load: Load, script_file: Path) -> list[str]:
    """Return the command. One thread only: the other core belongs to the measured server."""
    if load.each or load.seconds != int(load.seconds):
        raise ValueError(f"wrk: expected whole seconds, got {load.seconds} ({load.each} each)")
    url = f"http://127.0.0.1:{load.call.port}{load.call.path}"
    count, seconds = str(load.connections), f"{int(load.seconds)}s"
    timeout = f"{TIMEOUT_S}s"
    words = ["-t", "1", "-c", count, "-d", seconds, "--timeout", timeout, "-s", str(script_file)]
    return [wrk, *words, url]


def parse(output: str) -> Loaded:
    """Parse the output of `REPORT`. wrk counts answers of every status. Raises ValueError."""
    lines = [line for line in output.splitlines() if line.startswith("figures ")]
    if len(lines) != 1:
        raise ValueError(f"wrk: expected one line of figures, got {output[-500:]!r}")
    figures = json.loads(lines[0].removeprefix("figures "))
    return Loaded(
        requests=figures["requests"],
        seconds=figures["us"] / 1e6,
        p50_ms=figures["p50_us"] / 1e3,
        p99_ms=figures["p99_us"] / 1e3,
        errors=figures["errors"],
    )


def _quoted(text: str) -> str:
    """Quote any bytes as a Lua string, with decimal escapes; long brackets allow no escapes."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'

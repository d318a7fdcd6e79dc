"""wrk's script, command and output."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.loading import wrk
from benchmarks.loading.call import Call, Load

CALL = Call(8080, "/fn/tiny", b'{"a": 1}', {"Authorization": 'a"b]]'})
OUTPUT = """Running 2s test @ http://127.0.0.1:35603/fn/tiny
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     4.87ms    0.95ms  12.14ms   81.56%
    Req/Sec    12.94k     1.02k   14.60k    75.00%
  25737 requests in 2.01s, 5.13MB read
  Non-2xx or 3xx responses: 3
Requests/sec:  12826.63
Transfer/sec:      2.56MB

figures {"requests": 25737, "us": 2006532, "p50_us": 4817.0, "p99_us": 7647.0, "errors": 3}
"""


def test_the_figures_are_found_in_the_output() -> None:
    """Figures come from the script's own line, because wrk rounds its own."""
    loaded = wrk.parse(OUTPUT)

    assert (loaded.requests, loaded.seconds, loaded.errors) == (25737, 2.006532, 3)
    assert (loaded.p50_ms, loaded.p99_ms) == (4.817, 7.647)


@pytest.mark.parametrize("output", ["", "unable to connect", OUTPUT + OUTPUT])
def test_output_without_its_one_line_is_refused(output: str) -> None:
    """The output of a load that did not end properly is refused."""
    with pytest.raises(ValueError, match="expected one line of figures"):
        wrk.parse(output)


def test_the_script_quotes_whatever_headers_hold() -> None:
    """Quotes and brackets in headers stay bytes of a Lua string."""
    script = wrk.script(CALL, Path("/tmp/body"))

    assert 'a"b]]' not in script
    assert f'"{"".join(f"{chr(92)}{byte:03d}" for byte in b"Authorization")}"' in script
    assert script.count("wrk.headers[") == 2


def test_wrk_makes_the_load_with_one_thread() -> None:
    """wrk gets one thread, the given connections and the given seconds."""
    command = wrk.command("/usr/bin/wrk", Load(CALL, 64, 2.0), Path("/tmp/script.lua"))

    assert command[:7] == ["/usr/bin/wrk", "-t", "1", "-c", "64", "-d", "2s"]
    assert command[-1] == "http://127.0.0.1:8080/fn/tiny"


@pytest.mark.parametrize("load", [Load(CALL, 1, 0.5), Load(CALL, 1, 2.0, each=1)])
def test_unsupported_loads_are_refused(load: Load) -> None:
    """wrk takes only whole seconds and no number of calls, so such loads are refused."""
    with pytest.raises(ValueError, match="expected whole seconds"):
        wrk.command("wrk", load, Path("script.lua"))

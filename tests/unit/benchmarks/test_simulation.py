"""The simulated mix of models and servers."""

from __future__ import annotations

import pytest

from benchmarks.simulate import main
from benchmarks.simulation.functions import population
from benchmarks.simulation.report import play
from benchmarks.simulation.settings import Settings


def test_servers_start_slowly_and_stream_for_long() -> None:
    """Chosen functions are servers with starts of 60 to 120 s; the others keep their arrivals."""
    mixed = population(Settings(functions=10, servers=5))
    models = population(Settings(functions=10))
    servers = [one for one in mixed if one.server]

    assert [one.server is not None for one in mixed] == [True, False] * 5
    assert all(60.0 <= one.load_s <= 120.0 for one in servers)
    assert all(one.server and one.server.wait_s >= one.load_s for one in servers)
    assert [one.advance() for one in mixed] == [one.advance() for one in models]


def test_all_servers_take_turns_and_nothing_is_cut() -> None:
    """Four servers and two models on two devices: every function is served, streams end by
    themselves, and all calls are accounted for."""
    settings = Settings(
        functions=6, devices=2, servers=4, hours=1.0, rate=0.05, wait_s=600.0, end_s=2000.0
    )

    report = play(settings)

    assert len(report["gaps_s"]) == 6
    assert (report["cut"], report["failed"]) == (0, 0)
    assert report["swaps"] > 0
    assert report["answered"] + report["expired"] == report["requests"]
    assert 0.0 < report["server_wait_mean_s"] <= report["server_wait_max_s"] <= 600.0


def test_waits_of_servers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has columns for servers only if there are any."""
    short = ("--hours", "0.1", "--functions", "4", "--policy", "fngate")
    main(short)
    without = capsys.readouterr().out
    main((*short, "--servers", "2"))

    assert "server wait mean s" not in without
    assert "server wait mean s" in capsys.readouterr().out

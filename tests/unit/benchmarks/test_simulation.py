"""The simulated mix of models and servers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from benchmarks.simulate import main
from benchmarks.simulation.functions import population
from benchmarks.simulation.mixes import MIXES, mixed
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


FLEET = Settings(functions=12, devices=4, hosts=2, rate=0.3, hours=0.3, rtt_ms=1.0)


def test_placement_by_the_files_of_hosts_transfers_fewer() -> None:
    """Files that a host has from the start need no transfer if placement knows of them."""
    stocked = replace(FLEET, functions=40, files_mb=0.25, file_hosts=1)

    known, blind = play(stocked), play(replace(stocked, blind=True))

    assert known["requests"] == blind["requests"]
    assert known["transferred_gb"] < blind["transferred_gb"]
    assert known["wait_mean_s"] < blind["wait_mean_s"]


def test_a_small_cache_drops_files_that_were_used_least_recently() -> None:
    """Files that were dropped are sent again."""
    kept = replace(FLEET, files_mb=0.1)

    assert play(replace(kept, cache_mb=1.0))["transfers"] > play(kept)["transfers"]


def test_calls_outlive_the_losses_of_hosts() -> None:
    """All calls are accounted for although hosts lose power; the time of each decision is the
    least of its rounds."""
    report = play(replace(FLEET, losses=20.0, outage_s=60.0), rounds=2)

    assert report["hosts_lost"] > 0
    assert report["answered"] + report["expired"] == report["requests"]
    assert report["decisions"]["host event"]["count"] > 2
    assert report["decisions"]["tick"]["count"] == report["simulated_s"] - report["ticks_skipped"]


def test_the_figures_of_hosts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The details of a run with several hosts name transfers and losses."""
    main(("--hours", "0.05", "--devices", "4", "--hosts", "2", "--policy", "fngate"))

    assert "0 transfers of 0 GB in all, 0 losses of a host" in capsys.readouterr().out


BUSY = Settings(mix="busy-singles", devices=8, hours=0.15, end_s=700.0)
played = cache(play)


def test_a_mix_has_the_same_callers_under_every_policy() -> None:
    """Arrivals of a mix depend on the seed alone; its groups differ in their devices."""
    functions, groups = mixed(Settings(mix="heavy"))
    again, _ = mixed(Settings(mix="heavy"))
    others, _ = mixed(Settings(mix="heavy", seed=2))

    counts = {groups[one.key]: one.count for one in functions}
    assert counts == {
        "gang of 8": 8,
        "gang of 4": 4,
        "gang of 2": 2,
        "single servers": 1,
        "single models": 1,
    }
    arrivals = [one.advance() for one in functions]
    assert arrivals == [one.advance() for one in again]
    assert arrivals != [one.advance() for one in others]


def test_gangs_wait_in_vain_only_under_naive_policies() -> None:
    """Beside ten single servers that are always called, a replica on eight GPUs gets its turn; if
    only idle replicas give way, it waits until the callers of the others have left. All calls are
    accounted for."""
    product, naive = played(BUSY), play(replace(BUSY, policy="idle-only"))

    for report in (product, naive):
        assert report["answered"] + report["expired"] == report["requests"]
        assert (report["cut"], report["failed"]) == (0, 0)
    early, late = (report["groups"]["gang of 8"]["waits_s"] for report in (product, naive))
    assert len(early) == len(late) > 0
    assert all(some_s + 30.0 < more_s for some_s, more_s in zip(early, late, strict=True))


def test_parked_servers_wait_less() -> None:
    """The same callers, with servers that wake in a twentieth of their start: nothing is cut, busy
    ones are parked as well, and the replica on eight GPUs waits less."""
    parked, started = play(replace(BUSY, wake_part=0.05)), played(BUSY)

    assert parked["answered"] + parked["expired"] == parked["requests"]
    assert (parked["cut"], parked["failed"]) == (0, 0)
    assert parked["parks"] >= parked["wakes"] > 0
    waits = [sum(one["groups"]["gang of 8"]["waits_s"]) for one in (parked, started)]
    assert waits[0] < waits[1]


@pytest.mark.parametrize("name", ["no-claim", "strict-order"])
def test_other_orders_lose_no_call(name: str) -> None:
    """A policy without the standing claim, and one by strict order, decide otherwise than the
    product, and all calls are accounted for."""
    report, product = play(replace(BUSY, policy=name)), played(BUSY)

    assert report["answered"] + report["expired"] == report["requests"]
    assert report["groups"] != product["groups"]


def test_groups_of_a_mix_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row per group; for several seeds the mean wait has its range."""
    main(("--mix", "light", "--hours", "0.05", "--devices", "8", "--seed", "1", "--seed", "2"))
    printed = capsys.readouterr().out

    rows = [line for line in printed.splitlines() if line.startswith("| light | fngate |")]
    assert [row.split(" | ")[2] for row in rows] == [group.name for group in MIXES["light"]]
    assert " to " in rows[-1]


def test_callers_without_arrivals_cannot_be_foreseen() -> None:
    """The policy that knows the next call is refused for callers who ask again."""
    with pytest.raises(SystemExit):
        main(("--mix", "busy-singles", "--policy", "foresight"))


def test_idle_replicas_on_cpu_slots_hold_none() -> None:
    """An idle replica on a CPU slot keeps only its memory."""
    settings = Settings(functions=4, devices=2, hours=0.2, device_kind="cpu", memory_mib=64.0)

    assert play(settings)["idle_share"] == 0.0
    assert play(replace(settings, device_kind="cuda"))["idle_share"] > 0.0

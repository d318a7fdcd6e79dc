from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from admin.cli.live.state import QUIET_S, LiveState, Placed
from admin.cli.top.lines import STATES, text
from admin.cli.top.sections import RowContext, columns, head, row, rows, upcoming
from admin.documents.events import FunctionsEvent
from admin.documents.functions import FunctionRow
from tests.support.event_server import apply, beat, device_row, function_row, replica_row

GPU = device_row(
    "GPU-1", kind="cuda", state="taken", used_mib=20480, total_mib=81920, memory_mib=80000, busy=0.5
)


def test_a_device_is_a_row_with_its_replicas() -> None:
    """A device's row has its memory as the driver reports it, its busy share and its replicas."""
    here = [
        Placed(one, 1, 1)
        for one in (
            replica_row("r1", "digits", "GPU-1"),
            replica_row("r2", "sounds", "GPU-1", state="loading", role="trial"),
            replica_row("r3", "", "GPU-1", role="standby", state="standby"),
        )
    ]

    found = [text(line) for line in rows([GPU], {"GPU-1": here}, 5, 120)]

    assert found == [
        "GPU-1 ██       20.0/80.0 GiB busy ██▌    50% taken"
        "  digits@1 ready  sounds (trial) loading  standby",
    ]


def test_a_replica_on_several_gpus_tells_which_this_is() -> None:
    """The row of one of its GPUs has the number of that GPU among them."""
    wide = Placed(replica_row("r1", "llama", "GPU-0", "GPU-1"), 2, 2)

    found = text(rows([GPU], {"GPU-1": [wide]}, 5, 120)[0])

    assert found.endswith("taken  llama@1 2/2 ready")


def test_unknown_figures_are_not_shown() -> None:
    """A CPU slot without memory or use has none in its row."""
    slot = device_row("cpu:0", memory_mib=0, busy=None)

    assert text(rows([slot], {}, 5, 100)[0]).split() == ["cpu:0", "busy", "-", "free"]
    assert text(rows([slot], {}, 5, 60)[0]).split() == ["cpu:0", "busy", "-", "free"]


def test_a_device_out_of_use_says_why() -> None:
    """A device out of use shows the reason in the server's words."""
    gone = device_row("cpu:0", state="quarantined", reason="memory did not come back")

    assert text(rows([gone], {}, 5, 100)[0]).endswith("quarantined memory did not come back")


def test_devices_stand_in_order_of_their_numbers() -> None:
    """Devices are sorted by their numbers: 2 before 10."""
    found = rows([device_row(id) for id in ("cpu:10", "cpu:2", "GPU-a")], {}, 5, 100)

    assert [text(line).split()[0] for line in found] == ["GPU-a", "cpu:2", "cpu:10"]


def test_where_there_is_no_room_those_in_use_are_shown() -> None:
    """If not all devices fit, those in use are shown and the others counted."""
    many = [device_row(f"cpu:{n}", state="taken" if n == 40 else "free") for n in range(50)]
    here = {"cpu:45": [Placed(replica_row("r1", "a", "cpu:45"), 1, 1)]}

    found = [text(line) for line in rows(many, here, 4, 60)]

    assert [line.split()[0] for line in found] == ["cpu:40", "cpu:45", "cpu:0", "…"]
    assert found[-1] == "… and 47 more devices"
    assert rows(many, here, 0, 60) == []
    assert max(map(len, found)) <= 60


def context(item: FunctionRow, later_s: float = 0.0) -> RowContext:
    """Return a row context for the given time after the line was received."""
    live, now = LiveState(), 10.0 + later_s
    live.apply(FunctionsEvent([item]), 10.0)
    apply(live, 10.0, ("ready", {}), beat())
    if later_s < QUIET_S:
        apply(live, now, beat(1000.0 + later_s))
    return RowContext(live, now, live.server_s(now))


def shown(item: FunctionRow, width: int) -> str:
    """Return the row of this line."""
    return text(row(item, columns(width, ["abc"]), context(item), False))


def words(value: str) -> str:
    """Return a text with its columns one space apart."""
    return " ".join(value.split())


WARM = function_row(
    "abc", state="warm", ready=1, held=2, in_flight=1, rate=41.2, p50_ms=1.23, p95_ms=8.4
)


def test_a_row_has_what_fits() -> None:
    """A narrow row drops the least important columns first."""
    assert words(text(head(columns(100, ["abc"]), "p95"))) == (
        "NAME STATE READY HELD IN FL RATE P50 P95 NEXT TREND"
    )
    assert words(text(head(columns(60, ["abc"]), ""))) == "NAME STATE READY HELD RATE NEXT"
    assert words(shown(WARM, 100)) == "abc warm 1/4 2 1 41 1.2 ms 8.4 ms ██"
    assert words(shown(WARM, 60)) == "abc warm 1/4 2 41"


@pytest.mark.parametrize("fields", [{"trouble": "it refuses connections"}, {"golden": "wrong"}])
def test_a_server_in_trouble_has_the_colour_of_failing(fields: dict[str, Any]) -> None:
    """Its state stays what it is."""
    item = replace(WARM, **fields)
    spans = row(item, columns(120, ["abc"]), context(item), False)

    assert [style for word, style in spans if word.strip() == "warm"] == [STATES["failing"]]


def test_no_row_is_wider_than_its_screen() -> None:
    """No row is wider than its screen; names and trends use the extra width."""
    for width in range(60, 300):
        for longest in (1, 20, 63):
            kept = columns(width, ["x" * longest])
            assert sum(column.width + 1 for column in kept) - 1 <= width
    assert columns(200, ["x" * 63])[0].width == 63


def test_the_selected_row_is_marked() -> None:
    """The selected row is marked even without colours."""
    kept = columns(80, ["abc"])

    assert all("reverse" in style for _, style in row(WARM, kept, context(WARM), True))
    titles = {part.strip(): style for part, style in head(kept, "rate")}
    assert (titles["RATE"], titles["HELD"]) == ("bold underline", "bold")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"state": "waking", "phase": "load", "ready_in_ms": 1800}, "load ~800 ms"),
        ({"state": "waking", "phase": "load", "ready_in_ms": 900}, "load …"),
        ({"state": "waking", "phase": "load"}, "load"),
        ({"state": "waking", "phase": "load", "awaited": "waiting for 35 s"}, "waiting for 35 s"),
        ({"state": "waking", "ready_in_ms": 1800}, "ready ~800 ms"),
        ({"state": "warm", "sleeps_at_s": 1043.0}, "sleeps in 42 s"),
        ({"state": "warm", "engine": "server", "in_flight": 3}, "3 open"),
        ({"state": "warm", "engine": "server", "in_flight": 0}, ""),
        ({"state": "warm", "engine": "onnx", "in_flight": 3}, ""),
        ({"state": "warm", "sleeps_at_s": 1301.0}, "sleeps in 5 min"),
        ({"state": "warm", "sleeps_at_s": 1001.0 + 10_800}, "sleeps in 3 h"),
        ({"state": "warm", "sleeps_at_s": 1001.0}, "goes to sleep"),
        ({"state": "warm", "ready_in_ms": 0}, ""),
        ({"state": "cold", "ready_in_ms": 183}, "wakes ~183 ms"),
        ({"state": "parked", "ready_in_ms": 2_100}, "wakes ~2.1 s"),
        ({"state": "cold"}, ""),
        ({"state": "failing", "reason": "no such\nfile"}, "no such file"),
    ],
)
def test_a_countdown_advances(fields: dict[str, Any], text: str) -> None:
    """A countdown advances with the time since it was received."""
    item = function_row("abc", **fields)

    assert upcoming(item, context(item, 1.0)) == text


def test_a_countdown_stands_still_on_stale_data() -> None:
    """A countdown stands still while the data is stale."""
    waking = function_row("abc", state="waking", phase="load", ready_in_ms=1800)
    warm = function_row("abc", state="warm", sleeps_at_s=1042.0)

    assert upcoming(waking, context(waking, 60.0)) == "load ~1.8 s"
    assert upcoming(warm, context(warm, 60.0)) == "sleeps in 42 s"

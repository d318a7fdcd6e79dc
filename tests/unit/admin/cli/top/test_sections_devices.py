from __future__ import annotations

from admin.cli.top.lines import text
from admin.cli.top.sections import rows
from tests.support.event_server import device, replica

GPU = device(
    "GPU-1", kind="cuda", state="taken", used_mib=20480, total_mib=81920, memory_mib=80000, busy=0.5
)


def test_a_device_is_a_row_with_its_replicas() -> None:
    """Memory as the driver sees it, the share of time with a model running, who is on it."""
    here = [
        replica("r1", "digits", "GPU-1"),
        replica("r2", "sounds", "GPU-1", state="loading", role="trial"),
        replica(
            "r3", "", "GPU-1", role="standby", state="standby", revision="", pool="standby/cuda"
        ),
    ]

    found = [text(line) for line in rows({"GPU-1": GPU}, {"GPU-1": here}, 5, 120)]

    assert found == [
        "GPU-1 ██       20.0/80.0 GiB busy ██▌    50% taken"
        "  digits@1 ready  sounds (trial) loading  standby",
    ]


def test_what_is_not_known_is_not_shown() -> None:
    """A slot of the CPU may tell neither memory nor use."""
    slot = device("cpu:0", memory_mib=0, busy=None)

    assert text(rows({"cpu:0": slot}, {}, 5, 100)[0]).split() == ["cpu:0", "busy", "-", "free"]
    assert text(rows({"cpu:0": slot}, {}, 5, 60)[0]).split() == ["cpu:0", "busy", "-", "free"]


def test_a_device_out_of_use_says_why() -> None:
    """In its own words."""
    gone = device("cpu:0", state="quarantined", reason="memory did not come back")

    assert text(rows({"cpu:0": gone}, {}, 5, 100)[0]).endswith(
        "quarantined memory did not come back"
    )


def test_devices_stand_in_order_of_their_numbers() -> None:
    """Two comes before ten."""
    found = rows({id: device(id) for id in ("cpu:10", "cpu:2", "GPU-a")}, {}, 5, 100)

    assert [text(line).split()[0] for line in found] == ["GPU-a", "cpu:2", "cpu:10"]


def test_where_there_is_no_room_those_in_use_are_shown() -> None:
    """The others are counted."""
    many = {f"cpu:{n}": device(f"cpu:{n}") for n in range(50)}
    many["cpu:40"] = device("cpu:40", state="taken")
    here = {"cpu:45": [replica("r1", "a", "cpu:45")]}

    found = [text(line) for line in rows(many, here, 4, 60)]

    assert [line.split()[0] for line in found] == ["cpu:40", "cpu:45", "cpu:0", "…"]
    assert found[-1] == "… and 47 more devices"
    assert rows(many, here, 0, 60) == []
    assert max(map(len, found)) <= 60

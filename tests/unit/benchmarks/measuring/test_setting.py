"""Settings of a benchmark run."""

from __future__ import annotations

import os

from benchmarks.measuring.setting import LIBRARIES, Setting, about, has_setting


def test_the_measured_process_has_its_own_core() -> None:
    """The measured process has its own core if there are two, unless pinning is off."""
    usable = os.sched_getaffinity(0)
    measured, others = Setting().cores

    if len(usable) > 1:
        assert len(measured) == 1
        assert measured | others == usable
        assert not measured & others
    assert Setting(pinned=False).cores == (usable, usable)


def test_a_quick_run_loads_for_a_moment() -> None:
    """A quick run loads for one second, because wrk takes whole seconds."""
    assert Setting(quick=True).load_s == 1 < Setting().load_s


def test_server_settings_can_be_looked_up() -> None:
    """Settings of the server are known by name; the server would ignore an unknown variable."""
    assert has_setting("standbys")
    assert not has_setting("standbies")


def test_a_report_says_where_it_was_made() -> None:
    """A report names the machine and the versions of the relevant software."""
    assert {"machine", "cores", "python", *LIBRARIES} == set(about())

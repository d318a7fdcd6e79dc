"""How a run is asked for."""

from __future__ import annotations

import os

from benchmarks.measuring.setting import LIBRARIES, Setting, about, has_setting


def test_what_is_measured_has_a_core_of_its_own() -> None:
    """Where there are two, unless pinning is off."""
    usable = os.sched_getaffinity(0)
    measured, others = Setting().cores

    if len(usable) > 1:
        assert len(measured) == 1
        assert measured | others == usable
        assert not measured & others
    assert Setting(pinned=False).cores == (usable, usable)


def test_a_quick_run_loads_for_a_moment() -> None:
    """wrk takes whole seconds, so it is one."""
    assert Setting(quick=True).load_s == 1 < Setting().load_s


def test_settings_of_the_server_are_known() -> None:
    """A benchmark asks before it sets a variable that would be ignored."""
    assert has_setting("standbys")
    assert not has_setting("standbies")


def test_a_report_says_where_it_was_made() -> None:
    """The machine and the versions of what matters."""
    assert {"machine", "cores", "python", *LIBRARIES} == set(about())

"""Tests of the server itself on the page."""

from __future__ import annotations

from importlib.metadata import version

from admin.metrics import OneGateway, ServerFamilies
from registry.store.history import HistoryStatistics


def test_the_server_says_what_it_is_and_how_it_writes() -> None:
    """Version, driver, processes, history, and what the system says of the process."""
    written = HistoryStatistics(buffered=3, written=10, dropped=2, failed_flushes=1)
    families = ServerFamilies("process", lambda: written, OneGateway())
    families.snapshot()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.collect()
        for sample in family.samples
    }

    assert found["fngate_build_info", version("fngate"), "process"] == 1
    assert found["fngate_gateway_processes",] == 1
    assert found["fngate_gateway_process_deaths_total",] == 0
    assert found["fngate_history_waiting_records",] == 3
    assert found["fngate_history_dropped_records_total",] == 2
    assert found["fngate_history_failed_flushes_total",] == 1
    assert found["process_resident_memory_bytes",] > 0
    assert found["process_cpu_seconds_total",] > 0

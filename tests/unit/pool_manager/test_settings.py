"""The pool manager's settings."""

from __future__ import annotations

from pathlib import Path

from pool_manager.settings import PoolSettings


def test_the_defaults_are_the_published_ones() -> None:
    """The defaults are those in the documentation."""
    settings = PoolSettings(Path("r"), Path("m"), Path("l"))

    assert (settings.cpu_slots, settings.threads_per_slot, settings.memory_mib) == (2, 1, 0)
    assert (settings.orphan_s, settings.ping_s, settings.tick_s) == (60.0, 5.0, 1.0)
    assert (settings.log_bytes, settings.logs_kept, settings.notes_kept) == (2**20, 10, 100)
    assert (settings.starts_at_once, settings.standbys, settings.gpu_standbys) == (2, 0, 0)
    assert settings.gpus == "all"

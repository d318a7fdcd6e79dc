"""The bare-engine script does what a replica does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import subjects
from benchmarks.references import engine
from runtime_image.engines.onnx import session_options

ATTRIBUTES = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "log_severity_level",
    "graph_optimization_level",
    "execution_mode",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
)
ENTRIES = ("session.intra_op.allow_spinning", "session.disable_prepacking")


def shown(options: Any) -> dict[str, Any]:
    """Return the readable session options; an unset entry raises."""
    found = {name: getattr(options, name) for name in ATTRIBUTES}
    for entry in ENTRIES:
        try:
            found[entry] = options.get_session_config_entry(entry)
        except RuntimeError:
            found[entry] = None
    return found


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("prepack", [False, True])
def test_sessions_are_made_with_the_options_of_a_replica(optimise: bool, prepack: bool) -> None:
    """Every plan gives a replica's session options, so that the comparison is fair."""
    task = {"threads": 3, "optimise": optimise, "prepack": prepack}
    product = session_options(3, optimise=optimise, prepack=prepack)

    assert shown(engine.options(task)) == shown(product)


def test_a_run_is_timed_from_start_to_end(tmp_path: Path) -> None:
    """Rows per second are reported only for a task that lasts long enough."""
    tiny = subjects.tiny(tmp_path)
    task = {
        "model": str(tiny.model),
        "dtype": tiny.dtype,
        "shape": tiny.shape,
        "threads": 1,
        "optimise": True,
        "prepack": True,
    }

    assert sorted(engine.do(task)) == ["ended_s", "ms"]
    assert engine.do({**task, "rows": 2, "seconds": 0.001})["rows_per_s"] > 0

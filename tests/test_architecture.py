"""House rules, checked on the source text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from registry import errors
from tests.structure import PRODUCT
from tests.support import rules
from tests.support.rules import Source

ROOT = Path(__file__).parent.parent

ENVIRONMENT = {
    "admin/settings.py": "the one place where settings are read",
    "runtime_image/server/start.py": "the driver's environment of a sidecar, passed on to servers",
}
"""Source files that may touch the environment, and why."""

POLLING = {
    "functions/page/app.py": "an example of an answer that grows, with a pace of its own",
    "functions/web/app.py": "an example of a stream, with a pace of its own",
    "tests/chaos/attackers.py": "attackers keep their own pace",
    "tests/chaos/bounded_steps.py": "samples a server at a pace of its own",
    "tests/chaos/floods.py": "samples a server at a pace of its own",
    "tests/chaos/grpc_attackers.py": "attackers keep their own pace",
    "tests/chaos/silence.py": "asks a server at a pace of its own",
    "tests/gpu/box.py": "a driver tells nobody that memory came back",
    "tests/support/chat/chat.py": "it listens late if it is told to",
    "tests/support/dashboard/pictures.py": "callers keep a pace that the picture shows",
    "tests/support/leaks.py": "threads of gRPC close descriptors when they come to it",
    "tests/support/fake_driver/sidecar.py": "its slots have a clock of their own",
    "tests/support/faulty/answers.py": "slow answers are one of its behaviours",
    "tests/support/faulty/faulty.py": "it listens late if it is told to",
    "tests/support/faulty/lies.py": "it breaks off answers that have begun to arrive",
    "tests/support/faulty/lives.py": "log lines come at a bounded pace",
    "tests/support/sick/sick.py": "standing still for a time is how it is sick",
    "tests/support/nvml/stand_ins/torch.py": "another process follows its files",
}
"""Files of the suite that may sleep, and why."""

SPAWNERS = {"registry/tasks.py", "python_runner/connections.py", "python_runner/workers.py"}
"""The runner imports nothing of the registry; each of its tasks is held by what began it."""
STATUSES = {"gateway/statuses.py"}


@functools.cache
def product() -> tuple[Source, ...]:
    return tuple(rules.read(ROOT, PRODUCT))


@functools.cache
def suite() -> tuple[Source, ...]:
    return tuple(rules.read(ROOT, ("tests", "functions")))


def without(sources: Iterable[Source], paths: Iterable[str]) -> list[Source]:
    excluded = frozenset(paths)
    return [source for source in sources if source.path not in excluded]


def is_decision(source: Source) -> bool:
    """Return whether this file is decision code that must not block: the pools' core, and
    dispatch."""
    path = PurePosixPath(source.path)
    in_core = path.is_relative_to("pool_manager/core")
    return in_core or source.path.startswith("gateway/dispatch")


def test_no_file_is_too_long() -> None:
    """Every source file has at most 700 lines."""
    assert [c for source in product() for c in rules.long_file(source)] == []


def test_no_function_is_too_long() -> None:
    """Every function has at most 60 lines, or states a reason on its first line."""
    assert [c for source in product() for c in rules.long_functions(source)] == []


def test_no_folder_is_too_full() -> None:
    """Every folder has at most 24 source files."""
    assert rules.full_folders(product()) == []


def test_every_module_is_named_after_what_it_holds() -> None:
    """No module is called utils, helpers or common."""
    assert [c for source in (*product(), *suite()) for c in rules.vague_name(source)] == []


def test_every_folder_has_its_tests() -> None:
    """The files of `a/b/` are tested somewhere in `tests/unit/a/b/`."""
    assert rules.untested_folders(product(), suite()) == []


def test_decision_code_cannot_block() -> None:
    """The pools' core and the dispatcher have no async, await or lock."""
    deciding = [source for source in product() if is_decision(source)]

    assert [c for source in deciding for c in rules.waiting(source)] == []


def test_every_test_says_what_must_hold() -> None:
    """Every test function has a docstring."""
    assert [c for source in suite() for c in rules.silent_tests(source)] == []


def test_no_test_sleeps() -> None:
    """Tests wait for events; none sleeps for a fixed time."""
    waiting = without(suite(), POLLING)

    assert [c for source in waiting for c in rules.sleeps(source)] == []


def test_tasks_are_spawned_in_one_place() -> None:
    """One module spawns all background tasks, so each has a name and an owner."""
    spawning = without(product(), SPAWNERS)

    assert [c for source in spawning for c in rules.spawns(source)] == []


def test_the_environment_is_read_in_one_place() -> None:
    """Only the settings read the environment, apart from files listed with a reason."""
    reading = without(product(), ENVIRONMENT)

    assert [c for source in reading for c in rules.environment(source)] == []


def test_statuses_stand_in_one_table() -> None:
    """Only the problem table maps failures to HTTP statuses."""
    answering = without(product(), STATUSES)

    assert [c for source in answering for c in rules.statuses(source)] == []


def test_every_error_has_its_row() -> None:
    """Each error class that can reach a caller has its own row, not only its parent's."""
    problems = pytest.importorskip("gateway.problems", exc_type=ModuleNotFoundError)
    tree = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.FnError)
    }
    tables = [value for value in vars(problems).values() if isinstance(value, dict)]
    rows = {row for table in tables for row in table if inspect.isclass(row)}

    assert {error.__name__ for error in tree - rows} == set()

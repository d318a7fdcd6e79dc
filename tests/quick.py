"""What a change touches, in at most 90 s: `python -m tests.quick [--base REF] [--list]`.

Changed files against the merge base with REF, and what is not committed, become checks: ruff for
the files, the import rules, and test files by how closely they belong to the change. Those that
would take longer than the edit loop allows are named and left to `make test`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tests.durations import Seconds, read_known
from tests.structure import PRODUCT

ROOT: Final = Path(__file__).parent.parent
WORKERS: Final = 2
BUDGET_S: Final = 120.0
"""Seconds of test files, over WORKERS processes: the rest of 90 s collects, checks and starts."""

BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway/admission/": (
        "property/test_admission.py",
        "integration/test_refused_access.py",
        "e2e/test_changes_at_once.py",
    ),
    "gateway/dispatch/": ("property/test_dispatcher.py", "property/test_call_queue.py"),
    "gateway/grpc/": ("property/test_oip_bodies.py",),
    "gateway/http/exchange": (
        "property/test_exchanges.py",
        "property/test_exchange_differential.py",
    ),
    "gateway/http/fast_path": ("property/test_front_differential.py",),
    "gateway/http/known_heads": ("property/test_known_heads.py",),
    "gateway/http/models/": ("property/test_model_bodies.py",),
    "gateway/http/plain_heads": ("property/test_front_differential.py",),
    "gateway/metrics/": ("property/test_metrics.py", "property/test_sketch.py"),
    "gateway/oip/": ("property/test_oip_bodies.py",),
    "gateway/statuses.py": ("unit/gateway/grpc/test_codes.py", "test_reference.py"),
    "gateway/proxy/": (
        "property/test_body_framing.py",
        "property/test_proxied_heads.py",
        "property/test_answer_streams.py",
        "property/test_exchange_differential.py",
    ),
    "gateway/proxy/websocket": ("property/test_websocket_frames.py",),
    "gateway/v1/": ("property/test_model_bodies.py", "property/test_event_streams.py"),
    "hosts/kubernetes/": ("contract/test_api_faults.py", "contract/test_kubernetes_double.py"),
    "pool_manager/core/": (
        "property/test_machine.py",
        "property/test_placement.py",
        "property/test_host_machine.py",
        "property/test_server_machine.py",
        "property/test_turns.py",
    ),
    "pool_manager/builds.py": ("property/test_builds.py",),
    "pool_manager/core/start_queue": ("property/test_starts.py",),
    "pool_manager/drivers/": ("contract/test_drivers.py",),
    "pool_manager/fleet.py": ("contract/test_hosts.py",),
    "pool_manager/host.py": ("contract/test_hosts.py",),
    "pool_manager/hosts/": ("contract/test_hosts.py",),
    "pool_manager/hosts/kubernetes/": ("integration/test_kubernetes.py",),
    "pool_manager/drivers/process": ("contract/test_processes.py",),
    "registry/errors.py": ("unit/gateway/grpc/test_codes.py", "unit/gateway/test_problems.py"),
    "registry/path_rules.py": ("property/test_path_rules.py",),
    "registry/store/": ("property/test_registry.py",),
    "runtime_image/codecs/": ("property/test_codecs.py", "property/test_plain.py"),
    "runtime_image/contract/": ("contract/test_processes.py",),
    "runtime_image/link/": ("property/test_frames.py", "property/test_allocator.py"),
    "runtime_image/replica/": ("property/test_intake.py",),
    "runtime_image/server/": ("property/test_server_slots.py",),
    "runtime_image/verification/rows/": ("property/test_row_graphs.py",),
    "admin/api/": ("test_surface.py",),
    "admin/cli/": ("property/test_cli.py",),
    "admin/deploy/": ("property/test_deploy_turns.py",),
    "admin/workers/": ("property/test_gateway_protocol.py",),
    "admin/workers/hub": ("e2e/test_changes_at_once.py",),
    "admin/settings.py": ("test_reference.py", "test_surface.py"),
    "registry/manifest/": ("test_reference.py",),
    "tests/data/durations.toml": ("unit/test_durations.py",),
    "tests/data/surface.txt": ("test_surface.py",),
    "docs/": ("test_documents.py", "test_links.py"),
    "mkdocs.yml": ("test_reference.py", "unit/reference/test_navigation.py"),
    "README.md": ("test_documents.py", "test_links.py"),
    "CONTRIBUTING.md": ("test_links.py", "test_map.py"),
    "ARCHITECTURE.md": ("test_links.py", "test_map.py"),
    "CHANGELOG.md": ("test_links.py",),
    "pyproject.toml": ("test_lock.py",),
    "requirements.lock": ("test_lock.py",),
    "Makefile": ("integration/test_make.py",),
}
"""Tests below `tests/` that belong to what a path begins with, beside its unit tests."""

HOUSE_RULES: Final = "tests/test_architecture.py"
UNKNOWN_S: Final = {"integration": 20.0, "contract": 30.0, "e2e": 60.0}
"""Supposed seconds of a file without a known time, by its folder; of all others one second."""

_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+([\w.]+))", re.M
)


@dataclass(frozen=True)
class Choice:
    """Test files to run, in order, and those for which there is no time."""

    run: tuple[str, ...]
    left: tuple[str, ...]


def importers(tests: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the test files that import each module, by its dotted name, from texts by path."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, text in tests.items():
        for origin, names, module in _IMPORT.findall(text):
            found[origin or module].add(path)
            for name in re.findall(r"\w+", names):
                found[f"{origin}.{name}"].add(path)
    return found


def own(path: str, tests: Collection[str]) -> list[str]:
    """Return the mirror files of a module: `tests/unit/a/b/test_c.py` of `a/b/c.py`, also with more
    words behind, or with the last folders in the name (`test_b_c.py`)."""
    parts = PurePosixPath(path).with_suffix("").parts
    stems = [
        f"tests/unit/{'/'.join((*parts[:cut], ''))}test_{'_'.join(parts[cut:])}"
        for cut in range(1, len(parts))
    ]
    return [
        one
        for one in sorted(tests)
        if one.startswith(tuple(f"{s}{e}" for s in stems for e in "._"))
    ]


def neighbours(path: str, tests: Collection[str]) -> list[str]:
    """Return the tests in the nearest mirror folder that has some."""
    for parent in PurePosixPath(path).parents:
        folder = f"tests/unit/{parent}"
        if found := [one for one in sorted(tests) if str(PurePosixPath(one).parent) == folder]:
            return found
    return []


def touched(path: str, tests: Collection[str], known: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the tests of one changed file, the closest group first: itself or its own; those that
    belong beside it; where it has none of its own, those that import it, then its folder's."""
    if path in tests:
        return [[path]]
    beside = [
        f"tests/{test}"
        for start, several in BESIDE.items()
        if path.startswith(start)
        for test in several
    ]
    if path.endswith("/design.md"):
        beside += ["tests/test_links.py", "tests/test_map.py"]
    if not path.startswith((*(f"{top}/" for top in PRODUCT), "tests/")):
        return [[], beside]
    if path.endswith("conftest.py"):
        return [[one for one in sorted(tests) if one.startswith(path.removesuffix("conftest.py"))]]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    close = own(path, tests) if path.endswith(".py") else []
    named = sorted(known.get(module, ()), key=lambda one: (not one.startswith("tests/unit/"), one))
    if path.startswith("tests/"):
        return [close, beside, named, [HOUSE_RULES]]
    last = [HOUSE_RULES] if path.endswith(".py") else []
    farther = [] if close else [named, neighbours(path, tests)]
    return [close, beside, *farther, last]


def chosen(
    changed: Iterable[str],
    tests: Collection[str],
    known: Mapping[str, set[str]],
    seconds: Seconds,
    budget_s: float = BUDGET_S,
) -> Choice:
    """Return the tests of all changed files: the closest first, until the time is used up. A file
    that does not fit is left out, a shorter one behind it may still fit."""
    ranks: dict[str, int] = {}
    for path in changed:
        for rank, group in enumerate(touched(path, tests, known)):
            for test in group:
                if test in tests:
                    ranks[test] = min(rank, ranks.get(test, rank))
    run, left, used_s = [], [], 0.0
    for test in sorted(ranks, key=lambda one: (ranks[one], one)):
        needed_s = seconds.get(test, UNKNOWN_S.get(PurePosixPath(test).parts[1], 1.0))
        fits = used_s + needed_s <= budget_s
        used_s += needed_s if fits else 0.0
        (run if fits else left).append(test)
    return Choice(tuple(run), tuple(left))


def git(*words: str) -> list[str]:
    """Return the lines that git prints."""
    command = ["git", "-c", "core.quotePath=off", *words]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def checks(changed: list[str], choice: Choice) -> list[list[str]]:
    """Return the commands to run."""
    tools = Path(sys.executable).parent
    sources = [one for one in changed if one.endswith(".py") and (ROOT / one).is_file()]
    commands = []
    if sources:
        commands += [[f"{tools}/ruff", "format", "--check", *sources]]
        commands += [[f"{tools}/ruff", "check", *sources]]
    if any(one == "pyproject.toml" or one.split("/")[0] in PRODUCT for one in changed):
        commands += [[f"{tools}/lint-imports"]]
    if choice.run:
        parallel = ["-n", str(WORKERS), "--dist", "loadfile"] if len(choice.run) > 1 else []
        commands += [[sys.executable, "-m", "pytest", "-q", *parallel, *choice.run]]
    return commands


def main() -> int:
    """Run what a change touches; return the exit status of the first check that fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__)
    parser.add_argument("--base", default="main", help="branch that the change leaves (main)")
    parser.add_argument("--list", action="store_true", help="print the tests, run nothing")
    given = parser.parse_args()
    try:
        base = git("merge-base", given.base, "HEAD")[0]
    except subprocess.CalledProcessError:
        sys.stderr.write(f"expected a commit to compare with, got {given.base!r}: BASE=REF\n")
        return 2
    changed = sorted(
        {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    )
    paths = sorted(ROOT.glob("tests/**/test_*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    choice = chosen(changed, texts, importers(texts), read_known())
    if given.list:
        sys.stdout.writelines(f"{one}\n" for one in choice.run)
    else:
        for command in checks(changed, choice):
            if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
                return code
    sys.stdout.write(f"{len(changed)} changed files: {len(choice.run)} test files\n")
    if choice.left:
        sys.stdout.write("no time for: " + " ".join(choice.left) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

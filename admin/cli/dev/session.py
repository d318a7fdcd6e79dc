"""A run of `fnctl dev`: prepare, start, show, and start again at each change."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from admin.cli.dev.calling import curl, describe
from admin.cli.dev.folder import Folder, read_folder
from admin.cli.dev.packages import Packages, Prepared
from admin.cli.dev.running import HOST, Running, Start
from admin.cli.dev.watching import Watch, shown
from admin.text import duration
from environments.programs import SEARCH
from environments.runner import copy_runner
from environments.shell import write_shell
from registry.errors import EnvironmentRefused, FnError
from registry.files import unavailable
from registry.manifest.python import READY
from registry.model.servers import PORT
from runtime_image.contract.server import BUNDLE

HUNG: Final = 124
"""Exit code of the runner for a `predict` that hangs."""
STEP_S: Final = 0.05
"""Seconds between two attempts to reach a process that starts."""
WAITS: Final = "waits for a change of a file"


@dataclass(frozen=True, slots=True)
class Given:
    """What the command line says."""

    root: Path
    port: int
    variables: Mapping[str, str]
    """Variables of the function, before those of the folder."""
    upgrade: bool = False
    """Whether the first start asks the index anew."""


class Session:
    """One folder that is served until an interrupt."""

    def __init__(
        self, given: Given, packages: Packages, work: Path, say: Callable[[str], None]
    ) -> None:
        """`work` is an empty folder, `say` takes lines for the terminal. Raises BadBundle."""
        self._given = given
        self._packages = packages
        self._work = work
        self._say = say
        self._runs = count(1)
        self._watch = Watch(given.root)
        self._running: Running | None = None
        self._folder: Folder | None = None

    def run(self) -> None:
        """Serve until an exception such as KeyboardInterrupt, which ends the process, too."""
        refresh = self._given.upgrade
        while True:
            self._watch.begin()
            try:
                self._start(refresh=refresh)
                refresh = False
                why = self._until_change()
            finally:
                self._stop()
            self._say(f"{why}: starts again")

    def _start(self, *, refresh: bool) -> None:
        """Start the process; what cannot be started is told."""
        try:
            self._folder = read_folder(self._given.root)
            prepared = self._packages.prepare(self._folder, refresh=refresh)
            self._running = Running(self._how(self._folder, prepared))
        except FnError as error:
            self._tell(error)
        except OSError as error:
            self._tell(unavailable(error))

    def _tell(self, error: FnError) -> None:
        self._say(f"error: {error.title}: {error.message}")
        for note in getattr(error, "__notes__", []):
            self._say(f"next: {note}")
        self._say(WAITS)

    def _how(self, folder: Folder, prepared: Prepared) -> Start:
        """Write what a start needs; return how it is done."""
        here = self._work / f"run-{next(self._runs)}"
        python = write_shell(here, prepared.interpreter, prepared.environment)
        if missing := [name for name in folder.secrets if name not in self._given.variables]:
            self._say(f"warning: secrets are not set here: --env {missing[0]}=VALUE sets one")
        port = self._given.port
        variables = {name: _with_port(text, port) for name, text in folder.env.items()}
        variables = {BUNDLE: str(folder.root), **variables, **self._given.variables}
        if folder.server is not None:
            command = [_with_port(word, port) for word in folder.server.command]
            command[0] = _program(command[0], python.parent)
            ready = folder.server.ready or "/"
            return Start(command, folder.root, variables, python.parent, port, ready)
        settings = here / "settings.json"
        settings.write_bytes(msgspec.json.encode({**folder.settings, "listen": f"{HOST}:{port}"}))
        command = [str(python), "-I", "-B", "-u", str(self._runner(prepared)), str(settings)]
        return Start(command, folder.root, variables, python.parent, port, READY)

    def _runner(self, prepared: Prepared) -> Path:
        """Return the runner's program for an interpreter, copied once."""
        folder = self._work / f"runner-{prepared.interpreter.full_version}"
        if not folder.exists():
            folder.mkdir()
            copy_runner(folder, prepared.interpreter)
        return folder / "python_runner"

    def _until_change(self) -> str:
        """Return why it is to be started again."""
        began_s = time.monotonic()
        look_s = began_s + self._watch.pause_s
        was_ready = False
        while True:
            running = self._running
            if running is None:
                time.sleep(self._watch.pause_s)
            elif (code := running.wait(self._watch.pause_s if was_ready else STEP_S)) is not None:
                self._stop()
                if was_ready and code == HUNG:
                    return "it hung"
                self._say(f"the process ended with code {code}; {WAITS}")
            elif running.is_ready and not was_ready:
                was_ready = True
                self._announce(time.monotonic() - began_s)
            if time.monotonic() < look_s:
                continue
            if changes := self._watch.changes():
                return f"changed: {shown(changes)}"
            look_s = time.monotonic() + self._watch.pause_s

    def _announce(self, seconds: float) -> None:
        assert self._folder is not None
        url = f"http://{HOST}:{self._given.port}/"
        self._say(f"ready after {duration(seconds * 1e3)}: {url}  (Ctrl-C ends it)")
        if self._folder.server is None:
            line = curl(url, describe(HOST, self._given.port), self._folder.sample)
            self._say(f"next: {line}")
        else:
            self._say(f"next: curl {url}")

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        for path in self._work.glob("run-*"):
            shutil.rmtree(path, ignore_errors=True)


def _with_port(text: str, port: int) -> str:
    return text.replace(PORT, str(port))


def _program(name: str, programs: Path) -> str:
    """Return the path of a program, as PATH has it. Raises EnvironmentRefused."""
    found = shutil.which(name, path=f"{programs}:{SEARCH}")
    if found is None:
        raise EnvironmentRefused(
            f"server.command: expected a program of the packages or of {SEARCH}, got {name[:80]!r}"
        )
    return found

"""Run folders of Python functions: a shell over the shared packages, our server, its settings."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from environments.folders import Environment, Environments, EnvironmentSettings
from environments.interpreters import Interpreter, find_interpreters
from environments.runner import PROGRAM, copy_runner, runner_digest
from environments.shell import write_shell
from pool_manager.ports import Binding
from pool_manager.settings import PoolSettings
from registry.errors import StartRefused
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.server import SERVER_FOLDER, ServerSpec

log = structlog.get_logger()

RUNNER: Final = ".runner-"
_SHELL, _CODE, _SETTINGS = "python", "runner", "settings.json"
"""Below the folder of the server: the shell, and in it a link to our code, and the settings."""


class PythonRuns:
    """Makes what a start of a Python function needs. Methods may be called in any thread."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._found: tuple[Interpreter, ...] | None = None
        self._making = threading.Lock()

    def prepare(self, binding: Binding, record: ReplicaRecord, run_dir: Path) -> None:
        """Write shell and settings of a start into its run folder, which is there. Blocks. Raises
        StartRefused if its packages or their Python are not there, EnvironmentRefused,
        StoreUnavailable, OSError."""
        if binding.python is None:
            return
        environment = self._environment(binding)
        interpreter = self._interpreter(environment)
        server = run_dir / SERVER_FOLDER
        server.mkdir(mode=0o700, exist_ok=True)
        shell = server / _SHELL
        write_shell(shell, interpreter, environment)
        if binding.python.settings is None:
            return
        (shell / _CODE).symlink_to(self._runner(environment.folder.parent, interpreter))
        own: dict[str, Any] = {"device": record.device_kind, "threads": record.threads}
        (shell / _SETTINGS).write_text(json.dumps({**binding.python.settings, **own}))

    def spec(self, spec: ServerSpec, binding: Binding, run_dir: Path) -> ServerSpec:
        """Return what a server runs in its run folder, and which folders it cannot change."""
        if spec.is_apart:
            return spec
        spec = replace(spec, read_only=tuple(map(str, self._settings.shared)))
        if binding.python is None:
            return spec
        shell = run_dir / SERVER_FOLDER / _SHELL
        path = f"{shell / 'bin'}:{spec.env.get('PATH') or self._settings.server_path}"
        spec = replace(spec, env={**spec.env, "PATH": path})
        if binding.python.settings is None:
            return spec
        # The options stay as the revision has them; paths are known only here.
        _, *options, _, _, listen = spec.command
        program, code = shell / "bin" / "python", shell / _CODE / PROGRAM
        command = (str(program), *options, str(code), str(shell / _SETTINGS), listen)
        return replace(spec, command=command)

    def _environment(self, binding: Binding) -> Environment:
        root, python = self._settings.environments, binding.python
        assert python is not None
        environments = Environments(root, EnvironmentSettings()) if root else None
        found = environments.read(python.environment) if environments else None
        if environments is None or found is None:
            raise StartRefused(
                f"the packages of {binding.name} are not there: fnctl warm {binding.name} installs"
                " them"
            )
        environments.note_start(found.name)
        return found

    def _interpreter(self, environment: Environment) -> Interpreter:
        with self._making:
            if self._found is None:
                self._found = find_interpreters(self._settings.pythons).found
        lock = environment.lock
        found = next((one for one in self._found if lock.fits(one)), None)
        if found is None:
            there = ", ".join(one.full_version for one in self._found) or "none"
            raise StartRefused(
                f"expected Python {lock.python} on {lock.platform} with {lock.libc}, this server"
                f" has {there} (FN_PYTHONS)"
            )
        return found

    def _runner(self, root: Path, interpreter: Interpreter) -> Path:
        """Return the folder with our code and its bytecode for an interpreter, made once: at each
        start it would be compiled anew, as nothing can be written beside it."""
        with self._making:
            final = root / f"{RUNNER}{runner_digest()}-{interpreter.python}"
            if not final.is_dir():
                _make_runner(final, interpreter)
        return final

    def remove_old(self) -> None:
        """Remove our code as earlier versions of this server had it, unless a replica of theirs is
        still there, and what a killed start has left of it. Blocks. Never raises."""
        root = self._settings.environments
        if root is None:
            return
        with self._making:
            links = self._settings.run_dir.glob(f"*/{SERVER_FOLDER}/{_SHELL}/{_CODE}")
            used = {os.path.realpath(one) for one in links}
            for found in root.glob(f"{RUNNER}*"):
                is_ours = found.name.startswith(f"{RUNNER}{runner_digest()}-")
                if not is_ours and os.path.realpath(found) not in used:
                    log.info("an old copy of the runner is removed", name=found.name)
                    shutil.rmtree(found, ignore_errors=True)


def _make_runner(final: Path, interpreter: Interpreter) -> None:
    folder = final.with_name(f"{RUNNER}.{secrets.token_hex(8)}")
    try:
        copy_runner(folder, interpreter, final)
        folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

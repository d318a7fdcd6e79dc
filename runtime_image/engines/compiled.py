"""Engine of a compiled model: its key, its files, and its use beside an ordinary session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime_image.compilers.base import Compiler
from runtime_image.compilers.files import verified
from runtime_image.compilers.keys import model_digest, model_key, timing_key
from runtime_image.compilers.named import compiler_named
from runtime_image.contract.compiled import OTHER_KEY, CompiledModel, CompilerName, ShapeRange
from runtime_image.contract.control import SessionName
from runtime_image.contract.errors import LoadError
from runtime_image.contract.model import ModelSpec
from runtime_image.engines.base import Engine
from runtime_image.engines.onnx import (
    OnnxEngine,
    Sessions,
    environment_key,
    load_model,
    session_options,
)
from runtime_image.engines.upgrade import SessionUpgrade, log_line

OPENING_TAKES: Final = 2
"""Max memory of a compiled session while it is opened, as a multiple of its files' size: they are
copied to memory, and read from there."""
REASON_MAX: Final = 2000
MIB: Final = 2**20


class CompiledEngine(OnnxEngine):
    """An engine whose first session is a compiled one."""

    def __init__(self, sessions: Sessions, device_kind: str, model: Path) -> None:
        """`model` is the file that was compiled."""
        self._use(sessions, device_kind, COMPILED, model)


COMPILED: Final[SessionName] = "compiled"


@dataclass(frozen=True, slots=True)
class Place:
    """Model, compiler and device of a compiled model in this replica. `files` is the folder in
    which FOLDER is, the model's `folder` if it is None."""

    spec: ModelSpec
    folder: Path
    device_kind: str
    threads: int
    files: Path | None = None

    @property
    def model(self) -> Path:
        """The model that is compiled: the file that the ordinary session has loaded."""
        return self.folder / (self.spec.optimised or self.spec.model)

    def key(self, name: CompilerName, ranges: tuple[ShapeRange, ...]) -> str:
        """Return the key of files compiled here. Raises LoadError without this compiler."""
        platform = self.compiler(name).platform(environment_key(self.device_kind))
        return model_key(name, platform, ranges, model_digest(self.model))

    def timing_key(self, name: CompilerName) -> str:
        """Return the key of a timing cache made here. Raises LoadError without this compiler."""
        return timing_key(name, self.compiler(name).platform(environment_key(self.device_kind)))

    def compiler(self, name: CompilerName) -> Compiler:
        """Return a compiler. Raises LoadError if it compiles for other devices."""
        found = compiler_named(name)
        if found.device_kind != self.device_kind:
            raise LoadError(f"{name} compiles for {found.device_kind}, not for {self.device_kind}")
        return found

    def open(self, compiled: CompiledModel) -> Any:
        """Return a compiled session. Raises LoadError, before any file is opened by ONNX Runtime if
        its key or a file is not the expected one; OSError if the model cannot be read."""
        key = self.key(compiled.compiler, compiled.ranges)
        if key != compiled.key:
            raise LoadError(f"{OTHER_KEY}: compiled for {compiled.key}, this replica is {key}")
        with verified(self.files or self.folder, compiled) as contents:
            return self.compiler(compiled.compiler).open(
                compiled.form,
                contents,
                self.model,
                compiled.ranges,
                session_options(self.threads),
            )


def compiled_or_ordinary(
    spec: ModelSpec,
    folder: Path,
    *,
    device_kind: str,
    threads: int,
    not_compiled: Callable[[str], object],
) -> OnnxEngine:
    """Return the engine of the spec's compiled model; if it cannot be used, `not_compiled` gets the
    reason and the ordinary engine is returned. Raises LoadError with the reason of the latter."""
    assert spec.compiled is not None
    place = Place(spec, folder, device_kind, threads)
    try:
        main = place.open(spec.compiled)
        keeps = spec.compiled.keeps_ordinary
        ordinary = _ordinary_session(place) if keeps else None
        sessions = Sessions(main, spec.compiled.ranges, ordinary)
        return CompiledEngine(sessions, device_kind, place.model)
    except (LoadError, OSError) as error:
        reason = str(error)[:REASON_MAX]
    not_compiled(reason)
    log_line(f"{spec.revision} is not compiled: {reason}")
    return load_model(spec, folder, device_kind=device_kind, threads=threads)


def compiled_upgrade(
    engine: Engine,
    place: Place,
    compiled: CompiledModel,
    *,
    before: Callable[[], None],
    ended: Callable[[str], None],
) -> SessionUpgrade | str:
    """Return the exchange of a serving engine's session for a compiled one, or why there is none.

    `before` is called when the compiled session is about to serve, `ended` as in `SessionUpgrade`.
    """
    serving: Any = engine if isinstance(engine, OnnxEngine) else getattr(engine, "model", None)
    if not isinstance(serving, OnnxEngine):
        return "there is no model to compile"

    def build(_before_work: Callable[[], None]) -> OnnxEngine:
        # At normal priority: opening is short, and the session's threads would inherit a lower one.
        main = place.open(compiled)
        ordinary = None
        if compiled.keeps_ordinary:
            ordinary = serving.ordinary or _ordinary_session(place)
        sessions = Sessions(main, compiled.ranges, ordinary)
        built = CompiledEngine(sessions, place.device_kind, place.model)
        before()
        return built

    size = sum(file.size for file in compiled.files)
    return SessionUpgrade(
        serving,
        build,
        OPENING_TAKES * size / MIB,
        better=COMPILED,
        delay_s=0.0,
        after=serving.upgrade,
        ended=ended,
    )


def _ordinary_session(place: Place) -> Any:
    engine = load_model(
        place.spec, place.folder, device_kind=place.device_kind, threads=place.threads
    )
    return engine.ordinary

"""uv: where it is, its options, and its failures in our errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from environments.programs import Ended
from registry.errors import EnvironmentRefused, FnError, IndexAway, StoreUnavailable

REMEDY: Final = "make install EXTRAS=python"
CONNECT_S: Final = "5"
READ_S: Final = "8"
RETRIES: Final = "1"
"""Together: an index that does not answer is known in less than AWAY_S."""
AWAY_S: Final = 30.0
RETRY_S: Final = 30.0
HEAD_MAX: Final = 300
TEXT_MAX: Final = 2_000
"""Max characters of uv's text in an error. Its conclusion stands at the end."""
HINTS_MAX: Final = 600
_AWAY: Final = re.compile(
    r"(?i)error sending request|Request failed after|operation timed out|"
    r"Could not connect|dns error|offline|Failed to fetch|Failed to download|status server error"
)
_FULL: Final = re.compile(r"os error (?:28|122|27)\b|No space left on device")
_SOURCES_ONLY: Final = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)`")
_MISMATCH: Final = re.compile(r"(?i)hash mismatch|Hashes are mismatched|hash-checking")
_CREDENTIALS: Final = re.compile(r"://[^\s/@]*@")


def find_uv() -> Path:
    """Return the program that the installed package `uv` has brought, never another one.

    Raises EnvironmentRefused with the command that installs it.
    """
    try:
        files = metadata.files("uv") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "uv" and file.parent.name == "bin":
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    raise EnvironmentRefused(f"packages of functions need uv, which is not installed: {REMEDY}")


@dataclass(frozen=True, slots=True)
class Uv:
    """uv with what is the same for all its runs."""

    program: Path
    cache: Path
    config: Path | None = None
    """The operator's uv.toml; None for PyPI."""

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the arguments of a run: it builds nothing, loads no interpreter, and reads no
        settings but the operator's file."""
        if self.config is not None and not self.config.is_file():
            raise EnvironmentRefused(f"FN_UV_CONFIG: expected a file, got {self.config}")
        config: list[str | Path] = ["--no-config"]
        if self.config is not None:
            config = ["--config-file", self.config.absolute()]
        fixed = ["--no-build", "--no-sources", "--no-python-downloads", "--no-progress"]
        cache: list[str | Path] = ["--color", "never", "--cache-dir", self.cache.absolute()]
        return [self.program, *words, *fixed, *cache, *config]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a run besides the usual ones."""
        return {
            "UV_HTTP_TIMEOUT": READ_S,
            "UV_HTTP_CONNECT_TIMEOUT": CONNECT_S,
            "UV_HTTP_RETRIES": RETRIES,
            "UV_NO_WRAP": "1",
        }


def failure(ended: Ended, what: str) -> FnError:
    """Return the error of a run that failed; `what` was to be done."""
    text = _CREDENTIALS.sub("://", "".join(s for s in ended.text if s.isprintable() or s == "\n"))
    if _FULL.search(text):
        return StoreUnavailable(f"disk full: {what}: {core(text)}")
    if ended.code < 0:
        return EnvironmentRefused(f"{what}: uv was ended by signal {-ended.code}")
    if sources := sorted(set(_SOURCES_ONLY.findall(text))):
        return EnvironmentRefused(f"{what}: {core(text)}\n{_wheel_remedy(sources)}")
    if "No solution found" in text:
        return EnvironmentRefused(f"{what}: {core(text)}")
    if _MISMATCH.search(text):
        return EnvironmentRefused(f"{what}: a file is not the one that was locked: {core(text)}")
    if _AWAY.search(text):
        return IndexAway(f"{what}: {core(text)}", retry_after_s=RETRY_S)
    return EnvironmentRefused(f"{what}: {core(text)}")


def _wheel_remedy(sources: list[str]) -> str:
    """Return what to do about packages without a wheel that could be taken."""
    names = " ".join(sources)
    return (
        f"No wheel of {names} fits the wanted versions and this interpreter, and nothing is built"
        f" from source here. Build one yourself: pip wheel --no-deps --wheel-dir wheels {names}"
    )


def _ours(hint: str) -> str:
    """Return a hint of uv's as it helps here, "" if it names an option, which nobody can give."""
    if "--system-certs" in hint:
        return "system-certs = true in the uv.toml of FN_UV_CONFIG trusts the system's certificates"
    return "" if "`--" in hint else hint


def core(text: str) -> str:
    """Return uv's text without what is not needed: its head, the end of its reasons, its hints."""
    reasons, *hints = text.strip().removeprefix("error: ").split("\nhint: ")
    if len(reasons) > TEXT_MAX:
        head = reasons.partition("\n")[0][:HEAD_MAX]
        reasons = f"{head}\n  ...{reasons[-(TEXT_MAX - len(head)) :]}"
    hint = "".join(f"\nhint: {one.strip()}" for one in map(_ours, hints) if one)
    return f"{reasons.strip()}{hint[:HINTS_MAX]}"

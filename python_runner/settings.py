"""Settings of one server, read from a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from runtime_image.contract.model import InputRule
from runtime_image.contract.server import DESCRIPTION

FILE_MAX: Final = 1024 * 1024
"""Max bytes of the file."""
OutputKind = Literal["", "json", "text", "bytes", "image", "npy"]


class BadSettings(Exception):
    """The settings cannot be used; the text says why."""


class Output(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How results are written."""

    kind: OutputKind = ""
    """"": by the type of the result."""
    content_type: Annotated[str, Meta(max_length=200, pattern=r"^[\x20-\x7e]*$")] = ""
    """Content-Type of results of kind "text" and "bytes", "" for the kind's own."""
    labels: tuple[str, ...] = ()
    """As in `OutputRule`, as are `tensor` and `top_k`."""
    tensor: str = ""
    top_k: Annotated[int, Meta(ge=0)] = 0


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Everything that the server needs to know. Paths are absolute or below the present folder."""

    listen: str = ""
    """Path of a Unix socket, which has a slash, or 127.0.0.1:PORT; "" if an argument says it."""
    revision: str = ""
    """Shown in answers, "greet@3"; "" for none."""
    handler: str = "handler.py"
    """The handler's file; its folder is the bundle."""
    page: str = ""
    """HTML file that `GET /` answers, "" for none."""
    concurrency: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Calls at once: threads of a `def`, batches of an `async def`. 0: 1, and 32."""
    batch_max: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Max calls that `predict` gets at once, as lists; 0: one call, not in a list."""
    timeout_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """Seconds that `predict` may take, or one value of a stream."""
    body_mib: Annotated[float, Meta(gt=0, le=4096)] = 16.0
    """Max MiB of a request's body."""
    inputs: dict[str, InputRule] = {}
    """The rules of `[input]`, as in `ModelSpec`."""
    output: Output = Output()
    ready: str = "/.fngate/ready"
    """Path that answers once the handler is loaded."""
    description: str = DESCRIPTION
    """Path that answers with signature, schema and imports."""
    log_calls: bool = False
    """Whether stderr has a line for each answered call: method, path, status, milliseconds."""
    local_only: bool = False
    """Whether requests for another host than `listen`, and those of pages elsewhere, are refused:
    where no gateway stands before this server, browsers reach it."""
    device: str = "cpu"
    threads: int = 1


def read_settings(path: Path, listen: str = "") -> Settings:
    """Return the settings in a file; `listen` replaces theirs. Raises BadSettings."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from None
    if len(text) > FILE_MAX:
        raise BadSettings(f"{path}: expected at most {FILE_MAX} bytes, got more")
    try:
        settings = msgspec.json.decode(text, type=Settings)
    except (ValueError, RecursionError) as error:
        raise BadSettings(f"{path}: {error}") from None
    if listen:
        settings = msgspec.structs.replace(settings, listen=listen)
    host, _, port = settings.listen.rpartition(":")
    is_port = host == "127.0.0.1" and port.isascii() and port.isdigit() and int(port) < 2**16
    if "/" not in settings.listen and not is_port:
        got = repr(settings.listen[:80])
        raise BadSettings(f"{path}: listen: expected a path or 127.0.0.1:PORT, got {got}")
    return settings

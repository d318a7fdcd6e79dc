"""Table [python]: a function in Python with packages of its own, whose server is fngate's."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints

from registry.manifest.checks import NOTHING, Path, Section, Word, refused
from registry.manifest.server import VARIABLES_MAX, check_variables
from registry.model.revisions import Batching
from registry.model.servers import HOST_OF_CLIENT, PathRules, PythonSettings, ServerSettings
from runtime_image.contract.model import JSON, content_type, file_of
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import Network

MODEL_KEYS: Final = {
    "model": "; a handler around an ONNX model has no packages of its own, so leave [python] out",
    "runtime": ", which says what runs",
    "optimise": "",
    "oip": '; /v2 and gRPC are for models and for engine = "python" without packages',
    "openai": "; an application with [server] command beside [python] may have it",
}
"""Keys of the manifest that Python functions have not, and what to do instead."""
REQUIREMENTS: Final = "requirements.txt"
COMMAND: Final = ("python", "-I", "-u", "python_runner", "settings.json", "${SOCKET}")
"""What a start makes a command of: with its own interpreter, program and settings."""
OWN_PATHS: Final = "/.fngate/*"
"""Paths of our server that are for us alone."""
READY: Final = "/.fngate/ready"
BATCH_MAX: Final = 32
BATCHES_MAX: Final = 4096
_NEEDS: Final = (".txt", ".toml", ".py")


class PythonTable(Section):
    """Table [python]."""

    version: Annotated[str, StringConstraints(max_length=20)] = ""
    """Version of Python, such as `3.12`. Without it the first one of `FN_PYTHONS` that fits."""
    needs: Path = ""
    """File of the folder that names the packages: a `.txt` of requirements, `pyproject.toml`, or a
    `.py` with a block of inline script metadata. Without it `requirements.txt`, `pyproject.toml` or
    the block of `handler.py`, whichever there is; none of them is no packages."""
    handler: Path = "handler.py"
    """File that defines `predict`."""
    page: Path = ""
    """HTML file that `GET /` answers: [a page](../guides/python.md#a-page) that calls the function
    from a browser, at its own host."""
    network: Network = "none"
    """Network of the function: `none` for the calls alone, `egress` for whatever the host
    reaches."""
    start_s: float = Field(default=600.0, ge=1, le=3600)
    """Maximum seconds from the start until the handler is loaded."""
    stop_grace_s: float = Field(default=10.0, ge=0, le=600)
    """Seconds between the signals TERM and KILL when the function stops."""
    env: dict[str, Word] = Field(default={}, max_length=VARIABLES_MAX)
    """Environment variables of the function."""
    secrets: dict[str, Word] = Field(default={}, max_length=VARIABLES_MAX)
    """Environment variables whose values are secrets: variable to the secret's name."""


def check_needs(files: Collection[str]) -> None:
    """Raise BadManifest for a handler without a model beside requirements that nothing would
    install."""
    if REQUIREMENTS in files:
        raise refused(
            "python",
            f"[python] in place of [runtime], so that packages of {REQUIREMENTS} are installed",
            NOTHING,
        )


def beside_command(table: PythonTable, image: str) -> PythonSettings:
    """Convert the table of a server whose command runs beside the packages. Raises BadManifest for
    keys that [server] has."""
    if image:
        raise refused("python", "no such table with server.image, which has its packages", {})
    for key in sorted(table.model_fields_set - {"version", "needs"}):
        got = getattr(table, key)
        raise refused(f"python.{key}", "version or needs beside [server], which runs it", got)
    _check_needs_name(table.needs)
    return PythonSettings(table.version, table.needs)


def _check_needs_name(needs: str) -> None:
    if needs and not needs.endswith(_NEEDS):
        raise refused("python.needs", f"a name that ends with {', '.join(_NEEDS)}", needs)
    if "/" in needs:
        raise refused("python.needs", "a file of the folder, not of one below", needs)


def python_settings(
    table: PythonTable,
    samples: Sequence[SampleRequest],
    batching: Batching,
    output: tuple[str, str],
) -> ServerSettings:
    """Convert the table to settings; `output` are kind and content type of results. Raises
    BadManifest."""
    check_variables(table.env, table.secrets, at="python")
    _check_needs_name(table.needs)
    if not table.handler.endswith(".py"):
        raise refused("python.handler", "the path of a Python file", table.handler)
    return ServerSettings(
        command=COMMAND,
        env=dict(table.env),
        ready=READY,
        network=table.network,
        start_s=table.start_s,
        stop_grace_s=table.stop_grace_s,
        samples=tuple(samples),
        paths=PathRules(deny=(OWN_PATHS,)),
        secrets=dict(table.secrets),
        host=HOST_OF_CLIENT,
        python=PythonSettings(
            version=table.version,
            needs=table.needs,
            kind=output[0],
            content_type=output[1],
            batch_max=_batch_max(batching),
            page=table.page,
        ),
    )


def python_table(settings: ServerSettings, handler: str) -> dict[str, Any]:
    """Return the table that `python_settings` converts to these settings; {} if they are those of
    another server."""
    if settings.python is None:
        return {}
    own = {**asdict(settings), **asdict(settings.python), "handler": handler}
    return {key: own[key] for key in PythonTable.model_fields}


def python_samples(sample: Mapping[str, Any], files: Collection[str]) -> tuple[SampleRequest, ...]:
    """Return the request that stands for a sample, () for none. Raises BadManifest."""
    if not sample:
        return ()
    try:
        path = file_of(sample)
    except ValueError as error:
        raise refused("sample", "a file as its only input, or values", sorted(sample)) from error
    if not path:
        try:
            body = json.dumps({"inputs": sample}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise refused("sample", "values that JSON has", str(error)) from error
        return (SampleRequest("/", "POST", {"Content-Type": JSON}, body),)
    if path not in files:
        raise refused(f"sample.{next(iter(sample))}", "@ and one of the bundle's files", path)
    return (SampleRequest("/", "POST", {"Content-Type": content_type(path)}, f"@{path}"),)


def _batch_max(batching: Batching) -> int:
    """Return the max calls of a batch, 0 for none: no proof reads Python, its owner promises it."""
    if batching.wait_ms:
        raise refused("batching.wait_ms", "0 with [python]", batching.wait_ms)
    if batching.max_size > BATCHES_MAX:
        raise refused("batching.max_size", f"at most {BATCHES_MAX}", batching.max_size)
    return (batching.max_size or BATCH_MAX) if batching.mode == "always" else 0

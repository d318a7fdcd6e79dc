"""Requests of a benchmark: the function's sample or a file, as it is or with a number of rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from admin.cli.inputs import FILE_MAX, read_file, wrong, wrong_value
from admin.cli.requests import Wanted, of_sample, opened
from admin.client import routes
from admin.client.client import ApiError, Client, HttpRequest, Payload, function_path
from runtime_image.contract.model import CONTENT_TYPES, JSON, OCTETS, InputRule
from runtime_image.contract.samples import SampleRequest

MODULE: Final = "runtime_image.codecs.batches"
MAKE_S: Final = 60.0
"""Max seconds for making all bodies."""
SERVER: Final = "http"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the input comes from. `file` None: the function's sample. `is_json`: tensors are sent
    as JSON instead of the binary form. `wanted`: the request to a server."""

    file: Path | None = None
    media: str = ""
    is_json: bool = False
    wanted: Wanted = field(default_factory=Wanted)


@dataclass(frozen=True, slots=True)
class Request:
    """The request that a load repeats. `rows` of it, 0 for unknown; `form` in words; `status` is
    the expected one, 0 for any from 200 to 399."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    rows: int
    form: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """The function as its server describes it: `kind`, `signature`, `rules` of its inputs, and its
    server's first sample. `is_zeros`: it has no sample of its own."""

    kind: str
    signature: dict[str, Any]
    rules: Mapping[str, InputRule]
    is_zeros: bool
    sample: SampleRequest = field(default_factory=SampleRequest)


def describe(client: Client, ref: str) -> Described:
    """Ask for the function. A key without the scope `read` gets its public description only, which
    does for a file. Raises ApiError or Unreachable."""
    public = client.describe(ref)
    signature = public.get("signature") or {}
    kind = str(public.get("kind") or signature.get("kind") or "")
    try:
        function = client.call(routes.FUNCTION, ref.partition("@")[0]).value
    except ApiError as error:
        if error.code != "wrong_scope":
            raise
        return Described(kind, signature, {}, is_zeros=False)
    samples = function.server.samples if function.server else []
    sample = samples[0] if samples else SampleRequest()
    return Described(kind, signature, function.inputs, function.sample == "zeros", sample)


def checked_requests(
    client: Client, ref: str, described: Described, source: Source, batches: Sequence[int]
) -> dict[int, Request]:
    """Return `requests`, all of which can be sent. Raises BadParameter for a header, of a sample
    or of an option, that has a control character, and what `requests` raises."""
    found = requests(client, ref, described, source, batches)
    for one in found.values():
        try:
            client.endpoint.encode(one.method, one.path, one.headers, b"")
        except ValueError as error:
            raise wrong_value("--type" if source.media else "NAME", str(error)) from error
    return found


def requests(
    client: Client, ref: str, described: Described, source: Source, batches: Sequence[int]
) -> dict[int, Request]:
    """Return the request of each batch; 0 stands for the input as it is.

    Tensors of a sample are sent in the binary form. A file is sent unchanged, unless there are
    batches or `source.is_json`. Raises BadParameter, ApiError or Unreachable.
    """
    if described.kind == SERVER:
        _check_plain(source, batches, "a server function", described.kind)
        return {0: _of_server(client, ref, described, source.wanted)}
    if option := source.wanted.option:
        got = f"a function of kind {described.kind}"
        wrong(option, f"expected a server function, got {got}, whose input is --input FILE")
    payload = None
    if source.file is not None:
        payload = _read(source.file, source.media)
        if not batches and not source.is_json:
            return {0: _unchanged(ref, payload, described)}
    if described.kind != "tensors":
        _check_plain(source, batches, f"a function of kind {described.kind}", described.kind)
        return {0: _unchanged(ref, client.sample(ref), described)}
    if payload is None and not described.is_zeros:
        payload = client.sample(ref)
    made = _made(described, payload, batches or (0,), is_json=source.is_json)
    form = "JSON" if source.is_json else "binary tensors"
    return {
        batch: Request("POST", function_path(ref), headers, body, rows, form)
        for batch, (headers, body, rows) in zip(batches or (0,), made, strict=True)
    }


def _check_plain(source: Source, batches: Sequence[int], what: str, kind: str) -> None:
    if batches and tuple(batches) != (1,):
        got = ",".join(map(str, batches))
        wrong("-b", f"expected none, as {what} has no tensors with rows, got {got}")
    if source.is_json:
        wrong("--json-inputs", f"expected a function with tensors, got {what}")
    if kind == SERVER and source.file is not None:
        wrong("--input", f"expected none: the body of {what}'s request is -d @FILE")


def _of_server(client: Client, ref: str, described: Described, wanted: Wanted) -> Request:
    def sample(headers: Mapping[str, str]) -> HttpRequest:
        return of_sample(client, ref, described.sample, headers)

    with opened(wanted, sample) as request:
        body = request.body or b""
        if not isinstance(body, bytes):
            body = body.read(FILE_MAX + 1)
            if len(body) > FILE_MAX:
                wrong("-d", f"expected at most {FILE_MAX} bytes, got more")
    status = described.sample.status if wanted.is_empty else 0
    method, path = request.method, function_path(ref, request.path)
    form = f"{method} {request.path}"
    return Request(method, path, request.headers, body, 1, form, status)


def _unchanged(ref: str, payload: Payload, described: Described) -> Request:
    headers = {"Content-Type": payload.content_type}
    rows = 0 if described.kind == "tensors" else 1
    if rows == 0 and payload.content_type.startswith(("image/", "audio/")):
        rows = 1
    form = f"{payload.content_type}, unchanged"
    return Request("POST", function_path(ref), headers, payload.body, rows, form)


def _read(path: Path, media: str) -> Payload:
    body, suffix = read_file("--input", path), path.suffix.lower()
    return Payload(
        body, media or (JSON if suffix == ".json" else CONTENT_TYPES.get(suffix, OCTETS))
    )


def _made(
    described: Described, payload: Payload | None, batches: Sequence[int], *, is_json: bool
) -> list[tuple[dict[str, str], bytes, int]]:
    """Return headers, body and rows for each batch, made in a process with NumPy."""
    job = {
        "signature": described.signature,
        "rules": {name: asdict(rule) for name, rule in described.rules.items()},
        "rows": list(batches),
        "form": "json" if is_json else "binary",
        "content_type": payload.content_type if payload else "",
        "is_zeros": payload is None,
    }
    text = json.dumps(job).encode() + b"\n" + (payload.body if payload else b"")
    # With -P, a folder named runtime_image in the working directory is not imported.
    command = [sys.executable, "-P", "-m", MODULE]
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=MAKE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise wrong_value(
            "-b", f"the bodies were not made within {MAKE_S:g} s: choose fewer"
        ) from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        wrong("-b" if payload is None or any(batches) else "--input", lines[-1])
    return _split(done.stdout)


def _split(output: bytes) -> list[tuple[dict[str, str], bytes, int]]:
    found = []
    while output:
        line, _, output = output.partition(b"\n")
        head = json.loads(line)
        count = int(head["bytes"])
        found.append((dict(head["headers"]), output[:count], int(head["rows"])))
        output = output[count:]
    return found

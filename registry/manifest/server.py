"""Tables [server] and [sample] of a server function, and their conversion to settings."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from registry.errors import BadManifest
from registry.field_classes import class_of, fold
from registry.manifest.checks import NOTHING, Section, Word, refused, validate
from registry.manifest.container import (
    ORIGINS_MAX,
    ContainerTable,
    check_origin,
    container_settings,
    container_table,
)
from registry.model.functions import ExchangeLimits, Limits
from registry.model.servers import (
    HOST_BY_TRIAL,
    HOST_OF_CLIENT,
    HOST_OF_LOOPBACK,
    PORT,
    SOCKET,
    PathRules,
    ServerSettings,
)
from registry.names import NAME_RULE, is_name
from registry.path_rules import RULE_FORM, RULES_MAX, parse_rule
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import BUNDLE, MARKER, Network

WORDS_MAX: Final = 1000
VARIABLES_MAX: Final = 200
SAMPLES_MAX: Final = 20
HEADERS_MAX: Final = 50
TEXT_MAX: Final = 128 * 1024
"""Max bytes of all words of a command and all variables together: the kernel allows about this much
per word, and the rest of the record is small."""
STATUS_MAX: Final = 599
FIELDS_MAX: Final = 16
PORT_MAX: Final = 65_535
FIELD_MAX: Final = 64
"""Max characters of the name of a header field."""

_INSTEAD: Final = {
    "timeout_s": "limits.max_s for the whole exchange, or first_byte_s, with [server]",
    "body_mib": "no such key with [server], whose bodies are streams of any size; max_s limits"
    " their time",
}
_RULES: Final = ("wake", "free", "deny")
_AT: Final = "server"
REFUSED_KEYS: Final = ("model", "runtime", "input", "output", "batching", "optimise", "oip")
"""Keys of the manifest that only model functions have."""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, section 5.6.2."""
_SHELL_ONLY: Final = frozenset({"&", "&&", "|", "||", ";", "<", ">", ">>", "2>", "2>&1"})
_BUILTINS: Final = frozenset({"cd", "exec", "export", "source", ".", "ulimit", "umask"})
"""Words of a shell that are no programs. As the words of a list they are taken as they are."""
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_INTERPRETERS: Final = {".py": "python3", ".js": "node"}
_OWN_VARIABLES: Final = {
    MARKER: "marks a replica's processes",
    BUNDLE: "names the folder with the function's files",
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TARGET: Final = re.compile(r"/[!\"$-~]*")
"""A path with an optional query: visible ASCII characters without "#"."""
_METHOD: Final = re.compile(r"[A-Z]{1,20}")
HOST_MAX: Final = 253 + len(":65535")
"""Max characters of a host with its port (RFC 1035 section 2.3.4)."""
_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|[A-Za-z0-9._~-]{1,253})(?::(?P<port>[1-9][0-9]{0,4}))?"
)
"""host[:port] of RFC 3986 section 3.2.2, of its names those that need no escapes."""
_OWN_HEADERS: Final = frozenset(
    {"connection", "content-length", "expect", "host", "transfer-encoding", "upgrade"}
)

Target = Annotated[str, StringConstraints(max_length=2048)]


def split_command(text: str) -> list[str]:
    """Split a command as a shell would. Raises ValueError with what was expected."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"words as a shell splits them ({error})") from error
    for word in words:
        if word in _SHELL_ONLY:
            raise ValueError(f"no {word!r}, as no shell runs the command (sh -c '...' is one)")
    if words and words[0] in _BUILTINS:
        raise ValueError(f"a program first, and {words[0]!r} is a shell's (sh -c '...' is one)")
    if words and _ASSIGNMENT.match(words[0]):
        raise ValueError("a program first: variables are set by --env or in [server.env]")
    return words


def _split(value: object) -> object:
    """Split a string as a shell would."""
    try:
        return split_command(value) if isinstance(value, str) else value
    except ValueError as error:
        raise PydanticCustomError("words", "{what}", {"what": str(error)}) from error


class ServerTable(ContainerTable):
    """Table [server]."""

    command: Annotated[list[Word], BeforeValidator(_split)] = Field(
        default=[], max_length=WORDS_MAX
    )
    """Program and arguments that start an HTTP/1.1 server, as a list of words, or as a string that
    is split as by a shell. No shell runs it. `${PORT}` stands for the port to listen on,
    `${SOCKET}` for the path of a Unix socket, `${GPUS}` for the number of GPUs of the replica, 0 on
    a CPU slot. With `image`, arguments that replace the image's."""
    port: int = Field(default=0, ge=0, le=PORT_MAX)
    """Port that the server listens on. 0 where the command takes it from `${PORT}`, and for the
    only port that an image exposes."""
    ready: Target = ""
    """Path of the readiness probe, which expects a status from 200 to 399. Without it, `/` is
    probed, and every status below 500 means ready."""
    network: Network = "none"
    """Network of the server: `none` for the calls alone, `egress` for whatever the host reaches."""
    start_s: float = Field(default=600.0, ge=1, le=3600)
    """Maximum seconds from the start until the server is ready."""
    stop_grace_s: float = Field(default=10.0, ge=0, le=600)
    """Seconds between the signals TERM and KILL when the server stops."""
    wake: list[Word] = Field(default=[], max_length=RULES_MAX)
    """Requests that wake the function, such as `"/v1/*"` or `"POST /v1/*"`. Empty for all. Other
    requests get the problem `asleep` while it is cold."""
    free: list[Word] = Field(default=[], max_length=RULES_MAX)
    """Requests that take no slot of `limits.concurrency` and do not keep a replica awake."""
    deny: list[Word] = Field(default=[], max_length=RULES_MAX)
    """Requests that are refused, such as a server's own control calls."""
    env: dict[str, Word] = Field(default={}, max_length=VARIABLES_MAX)
    """Environment variables of the server, with `${PORT}`, `${SOCKET}` and `${GPUS}` as in
    `command`."""
    secrets: dict[str, Word] = Field(default={}, max_length=VARIABLES_MAX)
    """Environment variables whose values are secrets: variable to the secret's name."""
    origins: list[Word] = Field(default=[], max_length=ORIGINS_MAX)
    """Origins whose pages may call the function from a browser, such as `https://app.example`, or
    apps and extensions, such as `app://name` and `chrome-extension://ID`. They are compared exactly
    with what the browser sends; `null`, which every sandboxed page sends, is refused."""
    fields: list[Word] = Field(default=[], max_length=FIELDS_MAX)
    """Names with `_` of header fields that the server gets, such as `x_api_version`; the others
    with `_` are [dropped](fields.md). The deploy needs a key of scope `admin`."""
    host: Annotated[str, StringConstraints(max_length=HOST_MAX)] = HOST_BY_TRIAL
    """`Host` of the requests that the server gets: `client` for the client's, `loopback` for the
    address at which it listens (`127.0.0.1:PORT`; `localhost` on a Unix socket), or a fixed `HOST`
    or `HOST:PORT`. `auto`: `loopback` if the trial shows that the server [refuses other
    names](../guides/servers.md#servers-that-check-host), else `client`."""


class SampleTable(Section):
    """Table [sample] of a server function."""

    path: Target = "/"
    """Path of the request, with its query."""
    method: Annotated[
        str, BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
    ] = "GET"
    """Method of the request."""
    headers: dict[str, Target] = Field(default={}, max_length=HEADERS_MAX)
    """Header fields of the request."""
    body: str = Field(default="", max_length=65_536)
    """Body of the request: text, or `"@FILE"` for a file of the folder."""
    status: int = Field(default=0, ge=0, le=STATUS_MAX)
    """Status that the answer must have; 0 for any from 200 to 399."""
    golden: bool = False
    """Whether the trial learns its right answer, as a [golden
    sample](../guides/servers.md#golden-samples) that shows later whether the server still answers
    right. At most one sample is. Functions with `[openai]` have one by themselves, unless their
    network is `egress` or they have an `upstream_key`, with which it is refused."""


def server_settings(
    table: ServerTable, samples: Sequence[SampleRequest], files: Collection[str], gpus: int
) -> ServerSettings:
    """Convert the table to settings; `files` are the paths of the bundle, `gpus` is the number of
    GPUs of a replica (`device.count`). Raises BadManifest."""
    command = _command(table, files)
    check_variables(table.env, table.secrets, command)
    if not table.image:
        _check_address(command, table)
    if table.ready:
        _check_target(f"{_AT}.ready", table.ready)
    return ServerSettings(
        command=command,
        env=dict(table.env),
        port=table.port,
        ready=table.ready,
        network=table.network,
        start_s=table.start_s,
        stop_grace_s=table.stop_grace_s,
        samples=tuple(samples),
        paths=PathRules(**{kind: _rules(kind, getattr(table, kind)) for kind in _RULES}),
        secrets=dict(table.secrets),
        origins=tuple(map(check_origin, table.origins)),
        fields=tuple(dict.fromkeys(map(_passing_field, table.fields))),
        host=_checked_host(table.host),
        **container_settings(table, gpus),
    )


def server_table(settings: ServerSettings, gpus: int) -> dict[str, Any]:
    """Return the table that `server_settings` converts to these settings of replicas with this
    number of GPUs, without samples and the tables
    [openai] and [park]."""
    values = asdict(settings)
    del values["samples"], values["api"], values["found_host"], values["python"], values["park"]
    paths = values.pop("paths")
    return {
        **values,
        "command": list(settings.command),
        "origins": list(settings.origins),
        "fields": list(settings.fields),
        **{kind: list(rules) for kind, rules in paths.items()},
        **container_table(settings, gpus),
    }


def sample_requests(data: Any, files: Collection[str]) -> tuple[SampleRequest, ...]:
    """Convert `sample`, one table or a list of tables. Raises BadManifest."""
    if isinstance(data, Mapping):
        return (_sample("sample", data, files),)
    if not isinstance(data, list):
        raise refused("sample", "a table, or a list of tables", data)
    if len(data) > SAMPLES_MAX:
        raise refused("sample", f"at most {SAMPLES_MAX} requests", len(data))
    for number, one in enumerate(data):
        if not isinstance(one, Mapping):
            raise refused(f"sample.{number}", "a table", one)
    samples = tuple(_sample(f"sample.{number}", one, files) for number, one in enumerate(data))
    if sum(one.golden for one in samples) > 1:
        raise refused("sample", "at most one with golden = true", "more")
    return samples


def sample_files(samples: Sequence[SampleRequest]) -> Iterator[str]:
    """Yield the bundle paths that the samples name."""
    return (one.body[1:] for one in samples if one.body.startswith("@"))


def limits(
    values: Mapping[str, Any],
    given: Collection[str],
    *,
    is_server: bool,
    is_python: bool = False,
) -> tuple[Limits, ExchangeLimits | None]:
    """Convert the table [limits], whose keys `given` were set. Raises BadManifest for a key that
    the other kind of function has; Python functions, which are servers, have all."""
    exchange = {field.name for field in fields(ExchangeLimits)}
    own = {key: value for key, value in values.items() if key not in exchange}
    if not is_server:
        for key in sorted(exchange.intersection(given)):
            advice = "timeout_s for a run's limit" if key == "max_s" else "no such key"
            raise refused(
                f"limits.{key}", f"{advice} without [server]", values[key], "is for servers only"
            )
        return Limits(**own), None
    for key, instead in _INSTEAD.items():
        if key in given and not is_python:
            raise refused(f"limits.{key}", instead, values[key], "is for model functions only")
    kept = {key: value for key, value in values.items() if key in exchange}
    if kept["drain_s"] is None:
        kept["drain_s"] = kept["max_s"]
    return Limits(**own), ExchangeLimits(**kept)


def _bad(key: str, expected: str, got: object, note: str = "") -> BadManifest:
    return refused(f"{_AT}.{key}", expected, got, note)


def _command(table: ServerTable, files: Collection[str]) -> tuple[str, ...]:
    key, words = "command", table.command
    if table.image and not any("\0" in word for word in words):
        return tuple(words)
    if not words or not words[0]:
        raise _bad(key, "a program and its arguments", words or NOTHING)
    if any("\0" in word for word in words):
        raise _bad(key, "words without a zero byte", words)
    suffix = PurePosixPath(words[0]).suffix
    if PurePosixPath(words[0]).as_posix() in files and ("/" in words[0] or suffix):
        program = _INTERPRETERS.get(suffix, "sh")
        advice = f'an installed program, such as {program} in "{program} {words[0]}"'
        raise _bad(key, advice, words[0], "is a file of the bundle: these are not executable")
    return tuple(words)


def check_variables(
    env: Mapping[str, str], secrets: Mapping[str, str], command: Sequence[str] = (), at: str = _AT
) -> None:
    """Raise BadManifest for variables of table `at` that a server cannot have."""
    for section, variables in ((f"{at}.env", env), (f"{at}.secrets", secrets)):
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(name):
                raise refused(f"{section}.{name[:40]}", "a name of letters, digits and _", name)
            if note := _OWN_VARIABLES.get(name):
                raise refused(f"{section}.{name}", "another name", name, note)
            if "\0" in value:
                raise refused(f"{section}.{name}", "text without a zero byte", value)
    if both := sorted(env.keys() & secrets.keys()):
        raise refused(f"{at}.secrets.{both[0]}", f"a variable that {at}.env does not set", both[0])
    for name, secret in secrets.items():
        if not is_name(secret):
            raise refused(f"{at}.secrets.{name}", NAME_RULE, secret)
    if sum(len(text.encode()) for text in (*command, *env, *env.values())) > TEXT_MAX:
        key = f"{at}.command" if command else f"{at}.env"
        raise refused(key, f"at most {TEXT_MAX} bytes with {at}.env", "more")


def _check_address(command: tuple[str, ...], table: ServerTable) -> None:
    """The server must learn where to listen, or say it."""
    texts = (*command, *table.env.values())
    has_port, has_socket = (any(mark in text for text in texts) for mark in (PORT, SOCKET))
    if has_socket and (has_port or table.port):
        raise _bad("command", f"{SOCKET} alone, or a port", "both")
    if not (has_port or has_socket or table.port):
        raise _bad(
            "command",
            f"{PORT} in it or in server.env, or server.port, so that the server and its calls meet",
            " ".join(command),
        )


def _check_target(key: str, path: str) -> None:
    if not _TARGET.fullmatch(path):
        raise refused(key, "a path that begins with / and has no spaces", path)


def _rules(kind: str, rules: Sequence[str]) -> tuple[str, ...]:
    for number, rule in enumerate(rules):
        try:
            parse_rule(rule)
        except ValueError as error:
            raise _bad(f"{kind}.{number}", RULE_FORM, rule) from error
    return tuple(rules)


def _checked_host(host: str) -> str:
    """Return the Host that the server gets. Raises BadManifest."""
    found = _HOST.fullmatch(host)
    is_right = found is not None and int(found["port"] or 0) <= PORT_MAX
    if is_right and found is not None and found["address"]:
        try:
            ipaddress.IPv6Address(found["address"])
        except ValueError:
            is_right = False
    if not is_right:
        words = f"{HOST_BY_TRIAL}, {HOST_OF_CLIENT}, {HOST_OF_LOOPBACK}"
        form = f"{words}, or a host such as app.example:8080"
        raise _bad("host", form, host)
    return host


def _passing_field(name: str) -> str:
    """Return the name of a field that the server gets, in lower case. Raises BadManifest."""
    low = name.lower()
    if len(name) > FIELD_MAX or "_" not in name or not _TOKEN.fullmatch(name):
        form = f"names of header fields with _, of at most {FIELD_MAX} characters, such as x_a"
        raise _bad("fields", form, name)
    if found := class_of(fold(low.encode())):
        note = f"stands for a field of the class {found.title!r} in servers of the CGI family"
        raise _bad("fields", "another name", name, note)
    return low


def _sample(at: str, data: Mapping[str, Any], files: Collection[str]) -> SampleRequest:
    table = validate(SampleTable, data, at)
    _check_target(f"{at}.path", table.path)
    if not _METHOD.fullmatch(table.method):
        raise refused(f"{at}.method", "a method such as GET", table.method)
    if 0 < table.status < 200:
        raise refused(f"{at}.status", f"0, or a status from 200 to {STATUS_MAX}", table.status)
    for name, value in table.headers.items():
        key = f"{at}.headers.{name[:40]}"
        if not _TOKEN.fullmatch(name):
            raise refused(key, "the name of a header field", name)
        if name.lower() in _OWN_HEADERS:
            raise refused(key, "another field", name, "is set by fngate itself")
        if not value.isprintable() or not value.isascii():
            raise refused(key, "printable ASCII characters", value)
    if table.body.startswith("@") and table.body[1:] not in files:
        raise refused(f"{at}.body", "text, or @ and one of the bundle's files", table.body)
    return SampleRequest(**table.model_dump())

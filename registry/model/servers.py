"""Servers of functions: the tables [server], [openai] and [python] of a revision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from registry.model.hosts import Ability
from registry.model.parks import ParkSettings
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import Network

HOST_BY_TRIAL: Final = "auto"
HOST_OF_CLIENT: Final = "client"
HOST_OF_LOOPBACK: Final = "loopback"
PORT: Final = "${PORT}"
SOCKET: Final = "${SOCKET}"
"""In a command and in variables: the port, and the path of the Unix socket, to listen on."""


@dataclass(frozen=True, slots=True)
class PathRules:
    """Which requests of a server function wake it, take no slot, or are denied.

    Each rule is a path pattern ("/static/*"), or a method and one ("POST /v1/*").
    """

    wake: tuple[str, ...] = ()
    """Requests that wake the function; () for every request."""
    free: tuple[str, ...] = ()
    """Requests that take no slot and keep no replica awake."""
    deny: tuple[str, ...] = ()
    """Requests that are refused."""


@dataclass(frozen=True, slots=True)
class ServerImage:
    """The container image of a server, pinned by a deploy."""

    reference: str
    """The image as the manifest names it."""
    id: str = ""
    """The engine's id of what the reference was at the deploy; "" until the deploy has found or
    pulled the image."""
    digest: str = ""
    """The registry's "REPOSITORY@sha256:..." for the id; "" until the deploy has the image, and for
    an image that was built here."""
    user: str | None = field(default=None, compare=False)
    """USER that the image names, "" for none; it follows from the id. None: the deploy was one of
    an earlier release."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the host that a server sees."""

    name: str
    """Name, unique in the function."""
    source: str
    """Absolute path on the host."""
    target: str
    """Absolute path at which the server sees the folder."""
    is_read_only: bool = True
    """Whether the server cannot write there."""


@dataclass(frozen=True, slots=True)
class ModelApi:
    """The [openai] table: how requests to the gateway's /v1 reach the server."""

    served_model: str = ""
    """The model's name at the server; "" for the one that the client sends."""
    base: str = "/v1"
    """Path below which the server has the endpoints."""
    usage: Literal["ask", "as_sent"] = "ask"
    """"ask" adds `stream_options.include_usage` to streams whose usage is only sent on request, and
    takes the additional event out again."""
    body_mib: int = 32
    """Max MiB of a request's body."""
    comment_after_s: float = 20.0
    """Seconds after which a waiting stream gets its first comment; 0 for never."""
    on_disconnect: Literal["abort", "drain"] = "abort"
    """"drain" lets the server finish an answer whose client has left."""
    upstream_key: str = ""
    """Name of a secret that the server gets as a bearer key; "" for none."""


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """The [python] table of a revision, whose server has packages of its own: fngate's, which runs
    `Revision.handler`, or a command if there is no handler."""

    version: str = ""
    """Python that it wants, 3.12 or 3.12.1; "" for the first one that fits."""
    needs: str = ""
    """File that names the packages, "" for the one that the folder has."""
    kind: str = ""
    """Kind of results, "" by their type."""
    content_type: str = ""
    """Content-Type of results of kind text and bytes, "" for the kind's own."""
    batch_max: int = 0
    """Max calls that `predict` gets as lists; 0 for one call, not in a list."""
    page: str = ""
    """Bundle path of the HTML file that `GET /` answers, "" for none."""
    lock: str = ""
    """Digest of the stored lock of its packages, "" until the deploy has it."""
    environment: str = ""
    """Name of the folder of its packages, "" until the deploy has the lock."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The [server] table of a revision."""

    command: tuple[str, ...]
    """Program and arguments, with `${PORT}`, `${SOCKET}` and `${GPUS}` to be replaced. With an
    `image`: arguments that replace the image's, () for these. With a handler it stands for what a
    start makes of it."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables, with `${PORT}`, `${SOCKET}` and `${GPUS}` to be replaced."""
    port: int = 0
    """Port that the server listens on; 0 for the one that the sidecar chooses, or the only one that
    an image exposes."""
    ready: str = ""
    """Path of the readiness probe, which expects a status from 200 to 399; "" probes "/" and
    accepts every status below 500."""
    network: Network = "none"
    """Network of the server: "none" for the calls alone, "egress" for the host's."""
    start_s: float = 600.0
    """Max seconds from the start until the server is ready."""
    stop_grace_s: float = 10.0
    """Seconds between the signals TERM and KILL when the server stops."""
    samples: tuple[SampleRequest, ...] = ()
    """Requests that a trial sends."""
    paths: PathRules = field(default_factory=PathRules)
    """Which requests wake the function, take no slot, or are denied."""
    image: ServerImage | None = None
    """Image of the server's container; None for a command or a handler."""
    user: str = ""
    """User of an image's server, "UID" or "UID:GID"; "" for the image's."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities of an image's server, without CAP_."""
    writable: dict[str, int] = field(default_factory=dict)
    """Absolute paths of folders that an image's server may write to, with MiB of memory that their
    files may take."""
    shm_mib: int = 64
    """MiB of /dev/shm of an image's server."""
    stop_signal: str = ""
    """Signal that stops an image's server, such as "SIGQUIT"; "" for the image's own, or TERM."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the host that an image's server sees."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Environment variables with the names of the stored secrets that are their values."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may call the function."""
    fields: tuple[str, ...] = ()
    """Lower-case names with `_` of header fields that the server gets."""
    host: str = HOST_BY_TRIAL
    """The Host that the server sees: HOST_OF_CLIENT, HOST_OF_LOOPBACK for its own address, a fixed
    one, or HOST_BY_TRIAL for `found_host`."""
    found_host: str = HOST_OF_CLIENT
    """What the trial chose: HOST_OF_CLIENT or HOST_OF_LOOPBACK."""
    api: ModelApi | None = None
    """How it answers at /v1; None if it does not."""
    python: PythonSettings | None = None
    """Its Python packages; None if it has none of its own."""
    park: ParkSettings | None = None
    """How it sleeps; None if it is stopped instead."""

    @property
    def ability(self) -> Ability:
        """What a host must be able to run for it."""
        if self.image is not None:
            return Ability.IMAGE
        return Ability.COMMAND if self.python is None else Ability.PACKAGES

    @property
    def why_not_golden(self) -> str:
        """Why a trial is to learn no golden sample, "" if it is: from the sample that the manifest
        marks, or from the API at /v1. A server that reaches other machines may pass requests on, to
        somebody who counts them, so its API is not asked."""
        if any(one.golden for one in self.samples):
            return ""
        if self.api is None:
            return "no sample has golden = true"
        if self.api.upstream_key:
            return "it has an upstream_key, and no sample has golden = true"
        if self.network != "none":
            return f"its network is {self.network}, and no sample has golden = true"
        return ""

    @property
    def is_private(self) -> bool:
        """Whether only fngate reaches it: it has no network, or listens on a Unix socket."""
        texts = (*self.command, *self.env.values())
        return self.network == "none" or any(SOCKET in text for text in texts)

    @property
    def seen_host(self) -> str:
        """The Host that the server sees: HOST_OF_CLIENT, HOST_OF_LOOPBACK or a fixed one."""
        return self.found_host if self.host == HOST_BY_TRIAL else self.host

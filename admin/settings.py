"""All settings of `fnctl serve`. No other module reads the environment."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import tomllib
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from admin.prices import Prices, parse_prices
from environments.folders import EnvironmentSettings
from gateway.admission.access import ANY_ORIGIN
from gateway.admission.hosts import LOOPBACK, is_loopback
from gateway.proxy.trusted import parse_network
from gateway.settings import GatewaySettings
from pool_manager.drivers.uids import DEFAULT, parse_range
from pool_manager.hosts.settings import ACCOUNT, KubernetesSettings
from pool_manager.image_names import check_pattern
from pool_manager.mounts import MountRules
from pool_manager.settings import PoolSettings
from registry.errors import BadRequest
from registry.manifest.container import origin_fault
from registry.settings import DAY_S, StoreSettings
from registry.store.hosts import check_own_labels
from runtime_image.contract.addresses import TLS, TlsAddress
from runtime_image.contract.compiled import CompilerName

SOCKET_PATH_MAX = 107
"""Max bytes of a Unix socket's path (unix(7))."""
WORKERS_MAX = 32
"""Max gateway processes. A replica accepts 64 links; an earlier server may still hold some."""
HOST_LOST_MARGIN_S = 15.0
"""Seconds between the last call that a replica of an unreachable host takes and `host_lost_s`."""
SOCKET_TAIL = len("/00000000/data.sock")


def _checked_network(value: str) -> str:
    parse_network(value)
    return value


def _checked_origin(value: str) -> str:
    if value != ANY_ORIGIN and (fault := origin_fault(value)):
        expected = "an origin as browsers send it, such as https://app.example, or *"
        raise ValueError(f"expected {expected}: {fault}")
    return value


def _checked_link(value: str) -> str:
    if value:
        link_address(value)
    return value


def link_address(value: str) -> TlsAddress:
    """Return the address that a setting of links states. Raises ValueError."""
    with suppress(ValueError):
        found = TlsAddress.parse(TLS + value)
        if found.host and not found.name:
            return found
    raise ValueError("expected HOST:PORT, such as 10.0.0.5:7444 or [fd00::5]:7444")


class Settings(BaseSettings):
    """Settings. Precedence: command line, `FN_...` variables, `--config` file, defaults."""

    model_config = SettingsConfigDict(env_prefix="FN_", extra="forbid", frozen=True)

    driver: Literal["process", "docker"] = "process"
    """Driver that starts replicas: operating-system processes or Docker containers."""
    docker_host: str = Field("unix:///var/run/docker.sock", pattern=r"^unix:///.+")
    """Socket of the Docker engine, which must run on this machine."""
    image_cpu: str = "fngate-runtime:cpu"
    """Image of replicas on CPU slots, for the driver `docker`."""
    image_gpu: str = "fngate-runtime:gpu"
    """Image of replicas on GPUs, for the driver `docker`."""
    images: Annotated[tuple[Annotated[str, AfterValidator(check_pattern)], ...], NoDecode] = ()
    """Repositories of images that a key with the scope `deploy` may name for server functions, such
    as `ghcr.io/acme/app`, or `ghcr.io/acme/*` for all below a name; `*` for every image. Any other
    image needs the scope `admin`. The variable takes a JSON list, or items separated by commas.
    Empty for those alone that `fnctl image build` made on this machine."""
    replica_uids: str = DEFAULT
    """User ids of replicas in containers, as FIRST:COUNT. Each container has its own id; each data
    folder uses a slice of 1,024 ids."""
    workers: int = Field(1, ge=1, le=WORKERS_MAX)
    """Gateway processes that share the port. With 1 the server itself is the only one."""
    port: int = Field(8080, ge=0, le=65535)
    """TCP port; 0 lets the system choose one."""
    grpc_port: int = Field(0, ge=0, le=65535)
    """TCP port of the Open Inference Protocol over gRPC; 0 for none. It needs `make
    install EXTRAS=grpc`."""
    listen: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs an access key and a public host."""
    public_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Host names by which clients reach this server. A new one closes it to calls without a key.
    The variable takes a JSON list, or names separated by commas."""
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_origin)], ...], NoDecode
    ] = ()
    """Web origins, such as `https://app.example`, whose pages may send requests to `/fn`, `/v1`,
    `/v2` and `/openapi.json`, with a key where one is needed. `*` stands for every origin, but for
    none until the server is closed to calls without a key. A server function's own `server.origins`
    count beside these. The variable takes a JSON list, or items separated by commas. Empty for no
    other pages."""
    trusted_proxies: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_network)], ...], NoDecode
    ] = ()
    """Addresses and networks of the proxies in front of this server, such as `127.0.0.1` or
    `10.0.0.0/8`. Their `X-Forwarded-*` and `Forwarded` are continued for server functions; those of
    other clients are replaced. A new one closes the server to calls without a key. The variable
    takes a JSON list, or items separated by commas."""
    data: Path = Path("~/.fngate")
    """Folder for everything that is kept: functions, models, keys, history and logs."""
    cpu_slots: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=0, le=256)
    """Replicas that the CPU runs at once. A start counts, an idle replica takes memory only: see
    `FN_HOST_MEMORY_MIB`. 0 where only other hosts run replicas."""
    gpus: str = Field("all", min_length=1, max_length=4096)
    """GPUs for replicas: `all`, `none`, or numbers and UUIDs separated by commas, such as
    `0,GPU-5d3f…`, or `1:0` for a MIG slice. A GPU that does not exist is an error."""
    idle_s: float = Field(300.0, ge=0.05, le=86_400 * 30)
    """Idle seconds before a replica stops. A function's own `scaling.idle_s` overrides this. A
    deploy copies it into the function: a change counts for functions that are deployed afterwards,
    and `fnctl scale NAME --idle` for one that is there."""
    memory_mib: int = Field(0, ge=0)
    """Memory cap of a replica in MiB; 0 for none. A function's own `device.memory_mib` overrides
    this."""
    host_memory_mib: int = Field(0, ge=0)
    """Memory in MiB that all replicas on the CPU may take together, idle ones included; 0 for the
    memory of the machine without an eighth, or without 512 MiB if that is more."""
    standbys: int = Field(1, ge=0, le=16)
    """Standby replicas for the CPU. A standby is started without a model and shortens one cold
    start."""
    gpu_standbys: int = Field(0, ge=0, le=4)
    """Standby replicas on each GPU. Each takes about 600 MiB of GPU memory."""
    read_ahead_mib: int = Field(4096, ge=0, le=1_048_576)
    """MiB of a model that are read into memory while its replica starts; 0 for none."""
    mount_roots: Annotated[tuple[str, ...], NoDecode] = ()
    """Folders of this machine below which the containers of servers may mount folders. The variable
    takes a JSON list, or folders separated by colons. Empty for no mounts."""
    secret_key_file: Path | None = None
    """File with the key of the secrets, 64 hex digits. By default `secret.key` in the data folder,
    which is created with the first secret."""
    ballast_mib: int = Field(64, ge=0, le=1_048_576)
    """MiB of the data folder's disk that a file, `ballast`, takes up for revocations of keys and
    changes of settings: a full disk costs it. Uploads leave twice as much free. 0 for none."""
    prepare: bool = True
    """Whether a deploy prepares the model for cold starts: an optimised graph with its weights in a
    separate file. If off, replicas load models as they were deployed."""
    compiler: CompilerName = "tensorrt"
    """Compiler of models whose function.toml asks for one. `tensorrt`: GPUs alone. `onnxruntime`:
    the CPU, too, which shows builds on a machine without a GPU; its models are no faster."""
    build_delay_s: float = Field(0.0, ge=0.0, le=3600.0)
    """Seconds that are added to each build, for trials of what happens meanwhile."""
    held_mib: int = Field(256, ge=1)
    """MiB of request bodies and of answers that each gateway process holds at once, including
    bodies that still arrive and answers that clients have not taken. Above it no new request is
    accepted (429), and clients that take nothing for 30 seconds are cut. Shared memory for large
    bodies takes up to twice as much."""
    grpc_message_mib: int = Field(16, ge=1)
    """MiB of one message over gRPC, at most a quarter of `FN_HELD_MIB`. That much is reserved for
    each read, and nothing else runs while gRPC copies a message, about 1 ms for each MiB."""
    body_read_s: float = Field(30.0, ge=0.05)
    """Seconds that a client may take to send a request body."""
    head_read_s: float = Field(15.0, ge=0.05)
    """Seconds that a client may take to send a request head, on a new connection counted from the
    connect."""
    connections: int = Field(16_384, ge=1, le=1_000_000)
    """Client connections at once per gateway process. A lower limit of descriptors (`ulimit -Hn`)
    reduces this number. Idle connections are closed in favour of new ones."""
    server_path: str = Field("", max_length=32_768)
    """Folders in which the commands of server functions are looked for (PATH), separated by colons;
    empty for the server's own PATH."""
    pythons: Annotated[tuple[str, ...], NoDecode] = ()
    """Interpreters of Python functions, each a path or the name of a program, such as
    `python3.12`: 3.11 and newer. The variable takes a JSON list, or items separated by commas.
    Empty for the one that runs this server."""
    uv_config: Path | None = None
    """File `uv.toml` with the indexes, mirrors and logins of the packages of Python functions.
    Without it PyPI."""
    environment_mib: int = Field(8192, ge=1, le=1_048_576)
    """Most MiB that the packages of one Python function may have."""
    trial_wait_s: float = Field(300.0, ge=0.0, le=3600.0)
    """Seconds that the trial of a deploy waits for a device that no function in use has. Then a
    replica of its own function makes room, or the deploy ends."""
    orphan_s: float = Field(60.0, ge=1.0)
    """Seconds that a replica keeps serving after its server died."""
    host_lost_s: float = Field(75.0, ge=1.0, le=86_400.0)
    """Seconds after which an unreachable host counts as gone, so that handlers and servers start
    elsewhere: at least `FN_ORPHAN_S` + 15, as until then its replicas may take calls. Without this
    setting it is raised to that."""
    host_labels: Annotated[dict[str, str], NoDecode] = Field(default={})
    """Labels of this machine, such as `zone=a,disk=nvme`, for functions that name those of their
    host (`device.host`). The variable takes pairs separated by commas, or a JSON object."""
    link_listen: Annotated[str, AfterValidator(_checked_link)] = ""
    """Address, such as `0.0.0.0:7444`, at which replicas on machines that are neither this one nor
    reached by SSH dial in by TLS. Empty for none."""
    link_address: Annotated[str, AfterValidator(_checked_link)] = ""
    """Address and port that those replicas dial, such as `10.0.0.5:7444`. Empty for the one of
    `FN_LINK_LISTEN`, unless that stands for all addresses of this machine."""
    kubernetes_account: Path = ACCOUNT
    """Folder of the service account by which a server in a Kubernetes cluster reaches its API
    server, for `fnctl host add --kubernetes`: with the files `token`, `ca.crt` and `namespace`. The
    kubelet makes this one in Pods, and sets `KUBERNETES_SERVICE_HOST` and `..._PORT` there."""
    ping_s: float = Field(5.0, ge=0.05, le=3600.0)
    """Seconds between two liveness checks (PING) of a replica. Three unanswered checks end it."""
    usage_days: int = Field(400, ge=1, le=3650)
    """Days that the usage of models, by key and function, is kept."""
    dcgm_metrics: bool = False
    """Whether `/metrics` has the GPUs under the names of NVIDIA's DCGM exporter, too, such as
    `DCGM_FI_DEV_GPU_UTIL`. Off by default: beside a DCGM exporter every GPU would be there twice,
    and sums over GPUs would be wrong."""
    price_device_hour: str = Field("", max_length=4096)
    """Prices of an hour of a device for `fnctl cost`: one for all devices, or by kind of device or
    name of a GPU, such as `cpu=0.04,cuda=2.50,NVIDIA H200=3.9`. Empty for no prices."""
    price_kwh: float = Field(0.0, ge=0.0, le=1e6)
    """Price of a kilowatt-hour for `fnctl cost`; 0 for none."""
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    """Currency of the prices, by its code of three letters."""
    shutdown_s: float = Field(60.0, ge=0.0)
    """Seconds that a shutdown waits for accepted requests."""
    log_format: Literal["human", "json"] = "human"
    """Format of the server's own log."""
    access_log: bool = False
    """Whether the server's log has one line per call."""
    traces: str = Field("", max_length=2048, pattern=r"^(https?://[^\s?#]+)?$")
    """URL that receives traces over OTLP/HTTP, such as `http://127.0.0.1:4318/v1/traces`; empty for
    no traces."""
    traces_sample: float = Field(1.0, ge=0.0, le=1.0)
    """Share of calls that are traced. A client that sends `traceparent` decides for its own
    calls."""
    fast_front: bool = True
    """Whether plain calls take the fast path through HTTP. If off, aiohttp parses every request;
    the answers are the same."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature of pydantic-settings
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no .env files
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no secret files
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of values for pydantic-settings; `load_settings` merges the file."""
        return (init_settings, env_settings)

    @field_validator(
        "public_hosts", "cors_origins", "trusted_proxies", "images", "pythons", mode="before"
    )
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return json.loads(value)
        return tuple(name.strip() for name in value.split(",") if name.strip())

    @field_validator("mount_roots", mode="before")
    @classmethod
    def _split_folders(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):
            return json.loads(value)
        return tuple(folder for folder in value.split(":") if folder)

    @field_validator("host_labels", mode="before")
    @classmethod
    def _pairs(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("{"):
            return json.loads(value)
        pairs = [pair.partition("=") for pair in value.split(",") if pair.strip()]
        return {key.strip(): text.strip() for key, _, text in pairs}

    @field_validator("host_labels")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        try:
            return check_own_labels(value)
        except BadRequest as error:
            text = error.message.removeprefix("labels: ").partition("; got ")[0]
            raise ValueError(text) from error

    @field_validator("price_device_hour", mode="before")
    @classmethod
    def _are_prices(cls, value: object) -> object:
        # A file may have a plain number.
        text = str(value) if type(value) in (int, float) else value
        if isinstance(text, str):
            parse_prices(text)
        return text

    @field_validator("price_kwh")
    @classmethod
    def _is_finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("expected a number")
        return value

    @model_validator(mode="after")
    def _outlasts_replicas(self) -> Settings:
        least = self.orphan_s + HOST_LOST_MARGIN_S
        if "host_lost_s" in self.model_fields_set and self.host_lost_s < least:
            raise ValueError(
                f"host_lost_s: expected at least {least:g} (orphan_s + {HOST_LOST_MARGIN_S:g}), as"
                " replicas of an unreachable host take calls for orphan_s, got"
                f" {self.host_lost_s:g}"
            )
        return self

    @model_validator(mode="after")
    def _can_be_dialled(self) -> Settings:
        if not self.link_listen:
            if self.link_address:
                raise ValueError("link_address: expected link_listen (FN_LINK_LISTEN) as well")
            return self
        try:
            at = ip_address(link_address(self.link_listen).host)
        except ValueError as error:
            raise ValueError(
                "link_listen: expected an address of this machine in numbers, such as 0.0.0.0:7444,"
                f" got {self.link_listen}"
            ) from error
        dialled = link_address(self.link_address) if self.link_address else None
        if dialled is not None and (dialled.host in ("0.0.0.0", "::") or not dialled.port):  # noqa: S104
            raise ValueError(
                "link_address: expected the address and port that replicas dial, such as"
                f" 10.0.0.5:7444, got {self.link_address}"
            )
        if at.is_unspecified and dialled is None:
            raise ValueError(
                f"link_listen: {self.link_listen} stands for all addresses of this machine: set"
                " link_address (FN_LINK_ADDRESS) to the one that replicas dial, such as"
                " 10.0.0.5:7444"
            )
        return self

    @field_validator("replica_uids")
    @classmethod
    def _is_range(cls, value: str) -> str:
        parse_range(value)
        return value

    @property
    def is_local(self) -> bool:
        """True if only this machine can connect."""
        return self.listen in LOOPBACK

    def exposure(self) -> tuple[str, ...]:
        """Return what lets others than callers of this machine reach the server: an address to
        listen on, public hosts, trusted proxies."""
        listen = () if self.is_local else (self.listen,)
        hosts = (name for name in self.public_hosts if not is_loopback(name))
        return (*listen, *hosts, *self.trusted_proxies)

    def prices(self) -> Prices:
        """Return the prices of devices and energy."""
        default, by_name = parse_prices(self.price_device_hour)
        return Prices(self.currency, self.price_kwh, default, by_name)

    def store(self) -> StoreSettings:
        """Return the registry's section."""
        given = self.secret_key_file
        return StoreSettings(
            self.data,
            usage_keep_s=self.usage_days * DAY_S,
            secret_key_file=given and given.expanduser().absolute(),
            ballast_bytes=self.ballast_mib * 2**20,
        )

    def pool(self) -> PoolSettings:
        """Return the pool manager's section. CPU slots share the cores evenly (at least one)."""
        cores = os.cpu_count() or 1
        environment = os.environ  # noqa: TID251 - this is the module that reads it
        return PoolSettings(
            run_dir=run_dir(self.data),
            model_dir=self.data / "replicas",
            log_dir=self.data / "logs",
            cpu_slots=self.cpu_slots,
            gpus=self.gpus,
            threads_per_slot=max(1, cores // max(1, self.cpu_slots)),
            memory_mib=self.memory_mib,
            caps_all=self.driver == "docker",
            host_memory_mib=self.host_memory_mib,
            standbys=self.standbys,
            gpu_standbys=self.gpu_standbys,
            orphan_s=self.orphan_s,
            host_lost_s=max(self.host_lost_s, self.orphan_s + HOST_LOST_MARGIN_S),
            ping_s=self.ping_s,
            starts_at_once=cores,
            read_ahead_mib=self.read_ahead_mib,
            server_path=self.server_path or environment.get("PATH", os.defpath),
            mounts=self._mounts(),
            environments=self.data / "environments",
            shared=(self.data / "environments", self.data / "replicas", self.store().blobs),
            pythons=self.pythons,
        )

    def environments(self) -> EnvironmentSettings:
        """Return the section of the packages of Python functions."""
        given = self.uv_config
        config = given and given.expanduser().absolute()
        return EnvironmentSettings(config, self.environment_mib * 2**20)

    def kubernetes(self) -> KubernetesSettings:
        """Return the section of hosts in the cluster that this server runs in. Raises BadRequest
        for a port that is none."""
        environment = os.environ  # noqa: TID251 - this is the module that reads it
        host = environment.get("KUBERNETES_SERVICE_HOST", "")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
            raise BadRequest(f"KUBERNETES_SERVICE_PORT: expected a TCP port, got {port[:64]!r}")
        return KubernetesSettings(self.kubernetes_account, host, int(port))

    def _mounts(self) -> MountRules:
        """Return the rules for mounts; what belongs to the server itself is guarded from them."""
        engine = Path(self.docker_host.removeprefix("unix://"))
        guarded = (self.data, run_dir(self.data), engine, self.store().secret_key)
        return MountRules(tuple(map(Path, self.mount_roots)), guarded)

    def gateway(self) -> GatewaySettings:
        """Return the gateway's section."""
        return GatewaySettings(
            listen=self.listen,
            port=self.port,
            grpc_port=self.grpc_port,
            public_hosts=self.public_hosts,
            cors_origins=self.cors_origins,
            trusted_proxies=self.trusted_proxies,
            held_bytes_max=self.held_mib * 2**20,
            grpc_message_max=self.grpc_message_mib * 2**20,
            body_read_s=self.body_read_s,
            head_read_s=self.head_read_s,
            connections=self.connections,
            shutdown_s=self.shutdown_s,
            access_log=self.access_log,
            traces=self.traces,
            traces_sample=self.traces_sample,
            fast_front=self.fast_front,
        )


def load_settings(overrides: dict[str, Any], config: Path | None = None) -> Settings:
    """Return the effective settings. Raises BadRequest naming key, expected and got."""
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        from_file = tomllib.loads(config.read_text()) if config else {}
        # Environment variables override the file, so drop the file's values for them.
        environment = os.environ  # noqa: TID251 - this is the module that reads it
        open_keys = {k: v for k, v in from_file.items() if f"FN_{k.upper()}" not in environment}
        settings = Settings(**{**open_keys, **given})
    except OSError as error:
        raise BadRequest(f"--config: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"--config {config}: {error}") from error
    except ValidationError as error:
        raise BadRequest(_explain(error)) from error
    return settings.model_copy(update={"data": _one_path(settings.data)})


def is_malloc_set() -> bool:
    """Return whether the environment configures the C library's allocator."""
    environment = os.environ  # noqa: TID251 - this is the module that reads it
    return any(name.startswith("MALLOC_") for name in environment) or (
        "glibc.malloc." in environment.get("GLIBC_TUNABLES", "")
    )


def _one_path(folder: Path) -> Path:
    """Return a folder's canonical path, without links and dots: by this path a later server
    recognises replicas of an earlier one. Raises BadRequest if links form a loop."""
    try:
        path = folder.expanduser().resolve()
        # From Python 3.13 on, `resolve` returns a path with a circle as it is.
        with suppress(FileNotFoundError):
            path.stat()
        return path
    except (OSError, RuntimeError) as error:
        raise BadRequest(f"setting data: expected a folder, got {folder}: {error}") from error


def run_dir(data: Path) -> Path:
    """Return the folder of sockets: in the data folder if its path is short enough, else in the
    system's temporary folder, with a name that is unique per data folder."""
    near = data / "run"
    if len(os.fsencode(near)) + SOCKET_TAIL <= SOCKET_PATH_MAX:
        return near
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"fngate-{os.getuid()}-{digest}"


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    text = first["msg"].removeprefix("Value error, ")
    if not key:  # of several settings together; the text names them
        return f"setting {text}"
    return f"setting {key}: {text}, got {first.get('input')!r}"

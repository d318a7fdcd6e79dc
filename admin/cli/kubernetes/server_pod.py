"""The Pod of a server in a cluster. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.cli.kubernetes.yaml import Value
from admin.settings import Settings

HTTP: Final = 8080
"""Port of the server for clients."""
LINK: Final = 7444
"""Port at which replicas dial in."""
USER: Final = 10_001
"""User and group of the server: those of its image."""
DATA: Final = "/data/fngate"
"""The data folder, below the volume: the volume's own folder belongs to root."""
KEY_FILE: Final = "/data/first.key"
"""File with the first key of a new server."""
ENDING_S: Final = 30
"""Seconds that a server needs after `shutdown_s` to end: replicas run on without it."""
FIRST_KEY: Final = f"""\
set -eu; umask 077
[ -s {KEY_FILE} ] && exit 0
fnctl serve --listen 127.0.0.1 &
server=$!
until fnctl key add --scope invoke --json > /tmp/key 2> /tmp/why; do
  kill -0 $server || {{ cat /tmp/why; exit 1; }}
  sleep 1
done
python3 -c 'import json; print(json.load(open("/tmp/key"))["secret"])' > {KEY_FILE}
kill $server; wait $server || true
"""
"""Makes the first key of a new server while it listens on loopback only: a server that others can
reach does not start without one."""


@dataclass(frozen=True, slots=True)
class ServerPod:
    """What differs between the Pods of servers."""

    image: str
    """Image of `fnctl image build server`, as nodes pull it."""
    public_hosts: Sequence[str] = ()
    """Names by which clients reach the server, beside those of its Service."""
    pull_secrets: Sequence[str] = ()
    """Secrets of the namespace by which nodes pull the image."""


def pod_template(pod: ServerPod, namespace: str, name: str) -> Value:
    """Return the template of the server's Pod, whose Service and account are called `name`."""
    spec: dict[str, Value] = {
        "serviceAccountName": name,
        "terminationGracePeriodSeconds": _shutdown_s() + ENDING_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_first_key(pod)],
        "containers": [_server(pod, namespace, name)],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
    }
    if pod.pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in pod.pull_secrets]
    return {"metadata": {"labels": {"app.kubernetes.io/name": name}}, "spec": spec}


def _shutdown_s() -> int:
    return int(Settings.model_fields["shutdown_s"].default)


def _first_key(pod: ServerPod) -> Value:
    return {
        "name": "first-key",
        "image": pod.image,
        "command": ["/bin/sh", "-c", FIRST_KEY],
        "env": _pairs(_settings()),
        **_common(),
    }


def _server(pod: ServerPod, namespace: str, name: str) -> Value:
    # The last two are for fnctl in the Pod, and for clients behind `kubectl port-forward`.
    service = [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", "localhost", "127.0.0.1"]
    names = [*service, *pod.public_hosts]
    variable = f"{name.upper().replace('-', '_')}_SERVICE_HOST"
    reached = {
        "FN_LISTEN": "0.0.0.0",  # noqa: S104 - of a Pod, which its NetworkPolicy closes
        "FN_PUBLIC_HOSTS": ",".join(names),
        "FN_LINK_LISTEN": f"0.0.0.0:{LINK}",
        # The kubelet fills in the address of the Service, which a new Pod of the server keeps.
        "FN_LINK_ADDRESS": f"$({variable}):{LINK}",
    }
    return {
        "name": "server",
        "image": pod.image,
        "env": _pairs({**_settings(), **reached}),
        "ports": [
            {"name": "http", "containerPort": HTTP},
            {"name": "links", "containerPort": LINK},
        ],
        # A start adopts replicas first, and checks the whole database after a crash.
        "startupProbe": {**_probe("/healthz", name), "periodSeconds": 2, "failureThreshold": 150},
        "readinessProbe": {**_probe("/readyz", name), "periodSeconds": 5},
        "livenessProbe": {**_probe("/healthz", name), "periodSeconds": 10, "failureThreshold": 6},
        **_common(),
    }


def _settings() -> dict[str, str]:
    return {
        "FN_DATA": DATA,
        "FN_PORT": str(HTTP),
        # Functions run in Pods of their own, never in that of the server.
        "FN_CPU_SLOTS": "0",
        "FN_GPUS": "none",
        "FN_LOG_FORMAT": "json",
    }


def _pairs(settings: dict[str, str]) -> Value:
    return [{"name": name, "value": value} for name, value in settings.items()]


def _probe(path: str, host: str) -> dict[str, Value]:
    """Return a probe by HTTP. The server answers to its own names alone."""
    headers: list[Value] = [{"name": "Host", "value": host}]
    return {
        "httpGet": {"path": path, "port": HTTP, "httpHeaders": headers},
        "timeoutSeconds": 5,
    }


def _common() -> dict[str, Value]:
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "resources": {
            "requests": {"cpu": "250m", "memory": "512Mi"},
            "limits": {"memory": "2Gi"},
        },
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of the Pod
        ],
    }

"""Volumes of Pods: folders of the node that are mounted into containers."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

from tests.support.kubernetes.store import SECRETS, Json, Store
from tests.support.kubernetes.tokens import API_AUDIENCE, Tokens

_SUBSCRIPT = re.compile(r"metadata\.(annotations|labels)\['([^']+)'\]")


class MountFailed(Exception):
    """A volume cannot be made yet."""


class Volumes:
    """Makes the volumes of a node. `disks` is the folder of the volumes that claims name."""

    def __init__(self, store: Store, tokens: Tokens, disks: Path) -> None:
        self._store, self._tokens, self._disks = store, tokens, disks

    def make(self, pod: Json, folder: Path) -> None:
        """Make the folder `volumes/NAME` of each volume of a Pod. Raises MountFailed."""
        for volume in pod["spec"].get("volumes", []):
            where = folder / "volumes" / volume["name"]
            if claim := volume.get("persistentVolumeClaim"):
                where.parent.mkdir(parents=True, exist_ok=True)
                disk = self._disks / claim["claimName"]
                if not where.is_symlink():
                    where.symlink_to(disk)
                where = disk
            where.mkdir(parents=True, exist_ok=True)
            where.chmod(0o777)
            self._fill(pod, volume, where)

    def _fill(self, pod: Json, volume: Json, where: Path) -> None:
        files: dict[str, bytes] = {}
        if secret := volume.get("secret"):
            files |= self._secret(pod, secret["secretName"])
        for source in (volume.get("projected") or {}).get("sources", []):
            if token := source.get("serviceAccountToken"):
                files[token["path"]] = self.token(pod, token).encode()
            for item in (source.get("downwardAPI") or {}).get("items", []):
                files[item["path"]] = field_of(pod, item["fieldRef"]["fieldPath"]).encode()
            if secret := source.get("secret"):
                files |= self._secret(pod, secret["name"])
        if files:
            write(where, files)

    def token(self, pod: Json, source: Json) -> str:
        """Return a token that ends with the Pod."""
        metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        audience = source.get("audience") or API_AUDIENCE
        life_s = float(source.get("expirationSeconds") or 3600)
        return self._tokens.issue(metadata["namespace"], account, audience, life_s, pod)

    def _secret(self, pod: Json, name: str) -> dict[str, bytes]:
        found = self._store.get(SECRETS, name, pod["metadata"]["namespace"])
        if found is None:
            raise MountFailed(f'secret "{name}" not found')
        return {key: base64.b64decode(one) for key, one in found.get("data", {}).items()}

    def environment(self, pod: Json, container: Json, address: str) -> dict[str, str]:
        """Return the environment that a container's definition names. Raises MountFailed."""
        made = {}
        for one in container.get("env", []):
            source = one.get("valueFrom") or {}
            if reference := source.get("secretKeyRef"):
                secret = self._secret(pod, reference["name"])
                if reference["key"] not in secret:
                    where = f"{pod['metadata']['namespace']}/{reference['name']}"
                    raise MountFailed(f"couldn't find key {reference['key']} in Secret {where}")
                made[one["name"]] = secret[reference["key"]].decode()
            elif field := source.get("fieldRef"):
                known = {"status.podIP": address, "spec.nodeName": pod["spec"]["nodeName"]}
                path = field["fieldPath"]
                made[one["name"]] = known[path] if path in known else field_of(pod, path)
            else:
                made[one["name"]] = one.get("value", "")
        return made


def write(where: Path, files: dict[str, bytes]) -> None:
    """Write files as the kubelet does: links to a folder, which is replaced as a whole."""
    number = len(list(where.glob("..2*")))
    data = where / f"..2026_{number:03}"
    data.mkdir(mode=0o755)
    for name, content in files.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    new = where / "..data_tmp"
    new.symlink_to(data.name)
    new.replace(where / "..data")
    for name in files:
        first = name.partition("/")[0]
        if not (where / first).is_symlink():
            (where / first).symlink_to(f"..data/{first}")


def field_of(pod: Json, path: str) -> str:
    """Return a field of a Pod for a downward API volume or a variable."""
    if found := _SUBSCRIPT.fullmatch(path):
        named: dict[str, str] = pod["metadata"].get(found[1]) or {}
        return named.get(found[2], "")
    value: Any = pod
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return str(value)

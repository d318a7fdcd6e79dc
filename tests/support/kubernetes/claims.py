"""Dynamic resource allocation: claims get the devices of ResourceSlices whose UUIDs they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.kubernetes.admission import FINAL
from tests.support.kubernetes.store import CLAIMS, CLASSES, PODS, SLICES, Json, Store

USERS_MAX: Final = 256
"""Pods of one claim."""
_CEL = re.compile(
    r"""device\.attributes\[(["'])(?P<domain>[^"']+)\1\]"""
    r"""\.(?P<name>\w+) == (["'])(?P<value>[^"']*)\4"""
)
"""The one form of expressions that fngate writes."""


@dataclass(frozen=True)
class Found:
    """A device of a slice."""

    driver: str
    pool: str
    node: str
    device: Json


def missing(store: Store, pod: Json) -> str:
    """Return why a Pod's claims cannot be looked at, "" if they can."""
    for name in names(pod):
        if store.get(CLAIMS, name, pod["metadata"]["namespace"]) is None:
            return f'resourceclaim "{name}" not found'
    for claim in _claims(store, pod):
        for request in claim["spec"]["devices"]["requests"]:
            wanted = request["exactly"]["deviceClassName"]
            if store.get(CLASSES, wanted) is None:
                word = request["name"]
                return f"request {word}: device class {wanted} does not exist"
    return ""


def names(pod: Json) -> list[str]:
    """Return the names of the claims of a Pod."""
    return [one["resourceClaimName"] for one in pod["spec"].get("resourceClaims", [])]


def _claims(store: Store, pod: Json) -> Iterator[Json]:
    for name in names(pod):
        claim = store.get(CLAIMS, name, pod["metadata"]["namespace"])
        assert claim is not None
        yield claim


def refusal(store: Store, pod: Json, node: str) -> str:
    """Return why a node has not the devices of a Pod's claims, "" if it has."""
    for claim in _claims(store, pod):
        status = claim.get("status") or {}
        if allocation := status.get("allocation"):
            if node not in nodes_of(allocation):
                return "resourceclaim not available on the node"
            if len(status.get("reservedFor", [])) >= USERS_MAX:
                return "resourceclaim in use"
        elif _choose(store, claim, node) is None:
            return "cannot allocate all claims"
    return ""


def nodes_of(allocation: Json) -> list[str]:
    """Return the nodes that an allocated claim can be used on."""
    found: list[str] = [
        name
        for term in allocation["nodeSelector"]["nodeSelectorTerms"]
        for field in term["matchFields"]
        for name in field["values"]
    ]
    return found


def devices(store: Store) -> Iterator[Found]:
    """Yield every device that drivers have published."""
    for slice in store.every(SLICES):
        spec = slice["spec"]
        for device in spec.get("devices", []):
            yield Found(spec["driver"], spec["pool"]["name"], spec["nodeName"], device)


def _taken(store: Store) -> set[tuple[str, str]]:
    return {
        (one["pool"], one["device"]) for claim in store.every(CLAIMS) for one in _results(claim)
    }


def _results(claim: Json) -> list[Json]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    found: list[Json] = (allocation.get("devices") or {}).get("results", [])
    return found


def _choose(store: Store, claim: Json, node: str) -> list[tuple[str, Found]] | None:
    """Return a free device of the node for each request, None if there is none for one."""
    taken, chosen = _taken(store), []
    for request in claim["spec"]["devices"]["requests"]:
        exactly = request["exactly"]
        tests = [one["cel"]["expression"] for one in exactly.get("selectors", [])]
        free = [
            one
            for one in devices(store)
            if one.node == node
            and one.driver == exactly["deviceClassName"]
            and (one.pool, one.device["name"]) not in taken
            and all(_is_true(test, one) for test in tests)
        ]
        if not free:
            return None
        taken.add((free[0].pool, free[0].device["name"]))
        chosen.append((request["name"], free[0]))
    return chosen


def _is_true(expression: str, one: Found) -> bool:
    found = _CEL.fullmatch(expression.strip())
    if found is None:
        raise ValueError(f"the double evaluates no CEL but {_CEL.pattern}: {expression}")
    attributes = one.device.get("attributes", {}) if found["domain"] == one.driver else {}
    value = attributes.get(found["name"], {}).get("string")
    return bool(value == found["value"])


def allocate(store: Store, pod: Json, node: str) -> None:
    """Allocate the claims of a Pod, and reserve them for it."""
    metadata = pod["metadata"]
    user = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
    for claim in _claims(store, pod):
        chosen = [] if _results(claim) else _choose(store, claim, node) or []
        results = [
            {
                "request": request,
                "driver": one.driver,
                "pool": one.pool,
                "device": one.device["name"],
            }
            for request, one in chosen
        ]
        field = {"key": "metadata.name", "operator": "In", "values": [node]}

        def change(one: Json, results: list[Json] = results, field: Json = field) -> None:
            status = one.setdefault("status", {})
            if results:
                selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
                status["allocation"] = {"devices": {"results": results}, "nodeSelector": selector}
            status.setdefault("reservedFor", []).append(user)

        store.change(CLAIMS, claim, change)


def give_back(store: Store) -> None:
    """Drop the users that have ended, and the allocation of a claim without users."""
    living = {
        one["metadata"]["uid"] for one in store.every(PODS) if one["status"]["phase"] not in FINAL
    }
    for claim in list(store.every(CLAIMS)):
        users = (claim.get("status") or {}).get("reservedFor", [])
        kept = [one for one in users if one["uid"] in living]
        if len(kept) == len(users):
            continue

        def change(one: Json, kept: list[Json] = kept) -> None:
            one["status"]["reservedFor"] = kept
            if not kept:
                one["status"] = {}

        store.change(CLAIMS, claim, change)


def uuids(store: Store, pod: Json) -> list[str]:
    """Return the UUIDs of the devices that a Pod has by its claims."""
    found = []
    for claim in _claims(store, pod):
        for result in _results(claim):
            place = result["pool"], result["device"]
            found += [
                str(one.device["attributes"]["uuid"]["string"])
                for one in devices(store)
                if (one.pool, one.device["name"]) == place
            ]
    return found

"""Conditions of Pods and nodes."""

from __future__ import annotations

from tests.support.kubernetes.store import Json


def condition(type: str, status: str, now: str, reason: str = "", message: str = "") -> Json:
    """Return a condition; "" is not sent."""
    made: Json = {"type": type, "status": status}
    made["lastProbeTime"] = None
    made["lastTransitionTime"] = now
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def set_condition(object: Json, made: Json) -> None:
    """Set a condition of an object; the time of its transition stays if its status does."""
    listed = object["status"].setdefault("conditions", [])
    for number, one in enumerate(listed):
        if one["type"] == made["type"]:
            if one["status"] == made["status"]:
                made = {**made, "lastTransitionTime": one["lastTransitionTime"]}
            listed[number] = made
            return
    listed.append(made)


def drop_condition(object: Json, type: str) -> None:
    """Remove a condition of an object."""
    status = object["status"]
    status["conditions"] = [one for one in status.get("conditions", []) if one["type"] != type]


def status_of(object: Json, type: str) -> str:
    """Return the status of a condition, "" if there is none."""
    for one in object["status"].get("conditions", []):
        if one["type"] == type:
            return str(one["status"])
    return ""

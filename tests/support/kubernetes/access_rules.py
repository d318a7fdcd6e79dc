"""Access rules (RBAC) of the double: what an account may do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.support.kubernetes.errors import forbidden
from tests.support.kubernetes.store import Json, Resource


@dataclass(frozen=True)
class Rule:
    """As in a Role."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    """Such as pods, pods/log."""
    verbs: tuple[str, ...]

    @classmethod
    def load(cls, rule: Json) -> Rule:
        """Return a member of `rules` of a Role or ClusterRole."""
        return cls(tuple(rule["apiGroups"]), tuple(rule["resources"]), tuple(rule["verbs"]))


_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", *_READ)
DRA = "resource.k8s.io"
SERVER = (
    Rule(("",), ("pods",), (*_WRITE, "patch")),
    Rule(("",), ("pods/log",), ("get",)),
    Rule(("",), ("pods/resize",), ("patch",)),
    Rule(("",), ("secrets",), ("create", "delete")),
    Rule((DRA,), ("resourceclaims",), _WRITE),
    Rule(("",), ("nodes",), _READ),
    Rule((DRA,), ("resourceslices", "deviceclasses"), _READ),
    Rule(("authentication.k8s.io",), ("tokenreviews",), ("create",)),
    Rule(("authorization.k8s.io",), ("selfsubjectaccessreviews",), ("create",)),
    Rule(("scheduling.k8s.io",), ("priorityclasses",), ("get",)),
)
"""What the server's account may do: no more than it needs."""


class Asked(Protocol):
    """A request by its parts."""

    @property
    def user(self) -> str:
        """Name of the account."""

    @property
    def verb(self) -> str:
        """Such as get, list."""

    @property
    def resource(self) -> Resource:
        """The kind."""

    @property
    def part(self) -> str:
        """The subresource, "" for none."""

    @property
    def namespace(self) -> str:
        """The namespace, "" for the whole cluster."""

    @property
    def name(self) -> str:
        """The object, "" for all."""


def allows(rules: Iterable[Rule], verb: str, group: str, resource: str) -> bool:
    """Return whether a rule allows a verb for a resource, which may have a subresource behind /."""
    return any(
        group in rule.groups and resource in rule.resources and verb in rule.verbs for rule in rules
    )


def check(rules: Iterable[Rule], asked: Asked) -> None:
    """Raise Refused if no rule allows a request."""
    resource, verb = asked.resource, asked.verb
    whole = f"{resource.plural}/{asked.part}" if asked.part else resource.plural
    if allows(rules, verb, resource.group, whole):
        return
    shown = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    group = f'API group "{resource.group}" {shown}'
    said = f'User "{asked.user}" cannot {verb} resource "{whole}" in {group}'
    raise forbidden(resource, asked.name, said)

"""What a server asks of the API server, as rights of its service account.

`fnctl kubernetes manifests` grants these, and the checks of a cluster ask for each of them.
`tests/unit/hosts/kubernetes/test_rights.py` compares them with the requests in the code: all that
is granted is used, and all that is used is granted.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hosts.kubernetes.objects import (
    ACCESS_REVIEWS,
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    PRIORITIES,
    REVIEWS,
    SECRETS,
    SLICES,
    Kind,
)


class Grant(NamedTuple):
    """Rights to a kind of objects."""

    kind: Kind[Any]
    verbs: tuple[str, ...]
    subresource: str = ""

    @property
    def group(self) -> str:
        """The API group of the kind, "" for the core one."""
        return self.kind.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """The kind as rules name it."""
        return self.kind.plural + (f"/{self.subresource}" if self.subresource else "")


IN_NAMESPACE: Final = (
    Grant(PODS, ("create", "delete", "get", "list", "watch")),
    Grant(PODS, ("get",), "log"),
    Grant(PODS, ("patch",), "resize"),
    # One for each replica of an image with secrets; the server never reads one back.
    Grant(SECRETS, ("create", "delete")),
    Grant(CLAIMS, ("create", "delete", "get", "list")),
)
"""Rights in the namespace of the server."""
IN_CLUSTER: Final = (
    Grant(NODES, ("list", "watch")),
    Grant(SLICES, ("list", "watch")),
    Grant(CLASSES, ("get",)),
    Grant(PRIORITIES, ("get",)),
    Grant(REVIEWS, ("create",)),
    Grant(ACCESS_REVIEWS, ("create",)),
)
"""Rights in the whole cluster, as these kinds are in no namespace."""

"""Who has shown a projected service account token: the identity of replicas in Pods.

A replica in a Pod enrols with a token that the kubelet has projected into its Pod, for the audience
AUDIENCE. The API server says whose it is (TokenReview). It counts only if it is for this audience,
of the service account of our Pods, and bound to a Pod that this server has made, by name and uid:
a later Pod of the same name has another uid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from hosts.kubernetes.client import KubernetesClient
from hosts.kubernetes.errors import ApiAway, ApiRefused
from hosts.kubernetes.objects import REVIEWS, TokenReview, TokenReviewSpec, TokenReviewStatus
from hosts.tls.door import LinkDoor
from pool_manager.hosts.kubernetes.pod_specs import AUDIENCE
from registry.errors import DriverError, EngineDown

log = structlog.get_logger()

TOKEN_MAX: Final = 16 * 1024
"""Max characters of a token that the API server is asked about."""
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"

Find = Callable[[str, str], str | None]
"""Returns the id of the replica in a Pod with this name and uid, None if this server has made no
such Pod."""


@dataclass(frozen=True, slots=True)
class Named:
    """The Pod that a token is bound to."""

    pod: str
    uid: str


def named_by(status: TokenReviewStatus, user: str) -> Named | None:
    """Return the Pod that a reviewed token is bound to; None unless the token is valid, for
    AUDIENCE, and of `user`, the API's name of a service account."""
    # An API server, or a webhook of it, that knows no audiences returns none.
    if not status.authenticated or status.error or AUDIENCE not in status.audiences:
        return None
    if status.user.username != user:
        return None
    match status.user.extra.get(POD_NAME, ()), status.user.extra.get(POD_UID, ()):
        case (pod,), (uid,) if pod and uid:
            return Named(pod, uid)
    return None


def is_token(credential: str) -> bool:
    """Return whether a credential can be a token of a service account: three parts of base64url
    (RFC 7515 section 7.1). Anything else is not shown to the API server."""
    parts = credential.split(".", 3)
    return len(credential) <= TOKEN_MAX and len(parts) == 3 and all(map(_is_part, parts))


def _is_part(text: str) -> bool:
    return bool(text) and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


class PodIdentity:
    """Finds the replicas of one engine by their tokens. Nothing is cached: a token may have been
    withdrawn."""

    def __init__(self, client: KubernetesClient, user: Callable[[], str], find: Find) -> None:
        """`user` returns the API's name of the service account of Pods."""
        self._client, self._user, self._find = client, user, find

    async def replica_of(self, token: str) -> str | None:
        """Return the id of the replica that a token is of, None for none of this engine. Raises
        DriverError if the API server does not say it."""
        spec = TokenReviewSpec(token=token, audiences=(AUDIENCE,))
        try:
            review = await self._client.create(REVIEWS, TokenReview(spec=spec))
        except ApiAway as error:
            raise EngineDown(f"the API server does not say whose token this is: {error}") from error
        except ApiRefused as error:
            log.error("TokenReviews are refused: no replica can enrol", reason=str(error))
            raise DriverError(
                f"the API server does not say whose token this is: {error}"
            ) from error
        named = named_by(review.status, self._user())
        return self._find(named.pod, named.uid) if named is not None else None


class PodIdentities:
    """The identities of all engines of a server, which has one door for their replicas."""

    def __init__(self) -> None:
        self._engines: dict[str, PodIdentity] = {}

    def add(self, engine: str, identity: PodIdentity, door: LinkDoor) -> None:
        """Ask an engine from now on, in place of an earlier one of its name."""
        self._engines[engine] = identity
        door.identify(self._identify)

    def remove(self, engine: str, door: LinkDoor) -> None:
        """Ask an engine no more."""
        self._engines.pop(engine, None)
        if not self._engines:
            door.identify(None)

    async def _identify(self, credential: str, _peer: str) -> str | None:
        """`hosts.tls.admission.Identify`: the peer's address says nothing, as any Pod of the
        cluster may have it by then."""
        if not is_token(credential):
            return None
        for identity in list(self._engines.values()):
            if (id := await identity.replica_of(credential)) is not None:
                return id
        return None

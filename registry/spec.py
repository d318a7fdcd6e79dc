"""Derives what a replica runs from a revision and its profile: a model, or a server. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Final

from registry.batching import rows_of
from registry.catalog import Deployed
from registry.model import ExchangeLimits, Prepared, Profile, Revision, ServerSettings
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.server import ServerSpec
from runtime_image.contract.signature import Signature

INLINE_BELOW_MS: Final = 0.1
"""A shorter run costs less than passing it to a thread."""


def replica_spec(deployed: Deployed) -> ModelSpec | ServerSpec:
    """Return the specification that binds a replica to `deployed.revision`."""
    return server_spec(deployed) if deployed.revision.server else model_spec(deployed)


def server_spec(deployed: Deployed) -> ServerSpec:
    """Return the specification of a server function. Raises ValueError for a model function.

    The driver gives command and variables to the container of an image, not the sidecar.
    """
    revision, server = deployed.revision, deployed.revision.server
    if server is None:
        raise ValueError(f"{revision.ref} is no server function")
    exchange = deployed.function.exchange or ExchangeLimits()
    is_apart = server.image is not None
    return ServerSpec(
        revision=revision.ref,
        command=() if is_apart else server.command,
        env={} if is_apart else server.env,
        port=server.port,
        ready=server.ready,
        network=server.network,
        start_s=server.start_s,
        stop_grace_s=server.stop_grace_s,
        max_s=exchange.max_s,
        concurrency=exchange.concurrency,
        samples=server.samples,
        is_apart=is_apart,
    )


def model_spec(deployed: Deployed) -> ModelSpec:
    """Return the specification of a model function.

    Rows are batched only if `registry.batching` allows it.
    """
    revision, profile = deployed.revision, deployed.profile
    assert revision.engine != "server"
    batch_max = rows_of(revision, profile)
    return ModelSpec(
        revision=revision.ref,
        engine=revision.engine,
        model=revision.model,
        handler=revision.handler,
        inputs=revision.inputs,
        output=revision.output,
        batching=batch_max > 1,
        batch_max=batch_max,
        batch_wait_ms=revision.batching.wait_ms if batch_max > 1 else 0.0,
        inline=_inline(revision, profile),
        timeout_s=deployed.function.limits.timeout_s,
        sample=revision.sample,
        preparation=prepared.preparation if (prepared := prepared_of(deployed)) else None,
        equal_axes=profile.equal_axes if profile and batch_max > 1 else (),
        may_rerun=may_rerun(deployed),
        oip_name=deployed.function.oip_name,
        oip_version=revision.oip_version,
    )


def may_rerun(deployed: Deployed) -> bool:
    """Return whether a request that had started may run again.

    With `retry: auto` a handler may not: it may have had side effects.
    """
    retry = deployed.function.limits.retry
    return retry == "always" or (retry == "auto" and not deployed.revision.handler)


def prepared_of(deployed: Deployed) -> Prepared | None:
    """Return the prepared files of this revision's model, None if there are none.

    A profile belongs to the bundle, which may contain other models, too.
    """
    prepared = deployed.profile.prepared if deployed.profile else None
    return prepared if prepared and prepared.model == deployed.revision.model else None


def profile_engine(revision: Revision) -> str:
    """Return the engine that the revision's profile is stored under.

    The bundle says what a model function runs. A server function also runs what its command says,
    and may have no file at all: its engine is followed by a digest of the settings that it runs by.
    """
    if revision.server is None:
        return revision.engine
    defaults = asdict(ServerSettings(()))
    ran = {key: value for key, value in asdict(revision.server).items() if value != defaults[key]}
    # Without defaults, so that a new field does not separate a profile from its revision.
    ran.pop("paths", None)
    ran.pop("origins", None)
    ran.pop("api", None)
    text = json.dumps(ran, sort_keys=True)
    return f"{revision.engine}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def settings_equal(a: Revision, b: Revision) -> bool:
    """Return whether deploying `b` over `a` would change nothing.

    No new revision is then needed. Number and time do not affect what runs. The signature follows
    from the rest, and is not known yet at this point of a deploy.
    """
    return _comparable(a) == _comparable(b)


def _comparable(revision: Revision) -> Revision:
    return replace(revision, number=0, created_s=0.0, signature=Signature("json", (), ()))


def _inline(revision: Revision, profile: Profile | None) -> bool:
    if profile is None or not profile.profiled or revision.handler:
        return False
    one_row_ms = profile.latency_ms.get(1)
    return one_row_ms is not None and one_row_ms < INLINE_BELOW_MS

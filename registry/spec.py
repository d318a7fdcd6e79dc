"""Derives a replica's model specification from a revision and its profile. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from registry.batching import rows_of
from registry.catalog import Deployed
from registry.model import Prepared, Profile, Revision
from runtime_image.contract.model import ModelSpec
from runtime_image.contract.signature import Signature

INLINE_BELOW_MS: Final = 0.1
"""A shorter run costs less than passing it to a thread."""


def model_spec(deployed: Deployed) -> ModelSpec:
    """Return the specification that binds a replica to `deployed.revision`.

    Rows are batched only if `registry.batching` allows it.
    """
    revision, profile = deployed.revision, deployed.profile
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

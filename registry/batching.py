"""Decides whether requests of a revision are batched, and states the reason. Pure.

A profile is used only if the current rules made it for the model that the revision runs: earlier
rules were weaker, and a bundle may contain several models.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from registry.model.profiles import Profile
from registry.model.revisions import Revision
from runtime_image.contract.rows import PROOF

BUSY = "measured on a busy machine"
NOT_ANALYSED = "not analysed yet"
HANDLER = 'a handler may mix rows: [batching] mode = "always" in function.toml joins them'


def rows_of(revision: Revision, profile: Profile | None) -> int:
    """Return the max rows of one run; 1 if requests run one by one, and for a server function."""
    if profile is None or revision.server or _why_off(revision, profile):
        return 1
    return max(1, min(profile.batch_max, revision.batching.max_size or profile.batch_max))


def is_current(revision: Revision, profile: Profile) -> bool:
    """Return whether the current rules made this profile, for the model that the revision runs.

    No rules concern a server function.
    """
    if revision.server:
        return True
    return profile.proof >= PROOF and profile.model == revision.model


def is_stale(revision: Revision, profile: Profile | None) -> bool:
    """Return whether a new trial might allow batching that earlier rules had allowed."""
    if profile is None or is_current(revision, profile) or revision.batching.mode == "off":
        return False
    if revision.handler and revision.batching.mode != "always":
        return False
    return profile.batchable or profile.compared


def summary(revision: Revision, profile: Profile | None) -> str:
    """Return the result in words: "up to 32 rows", or "off" and the reason; "" for a server
    function, whose requests are never joined."""
    if revision.server:
        return ""
    if profile is None:
        return f"off: {NOT_ANALYSED}"
    if why := _why_off(revision, profile):
        why += _contention(profile) if why == profile.why_not else ""
        return f"off: {why}" if profile.profiled else f"off (unprofiled): {why}"
    if profile.batch_max == 1:
        return f"off: possible, but several rows in one run are no faster{_contention(profile)}"
    rows = rows_of(revision, profile)
    if rows == 1:
        return "off, as requested: max_size is 1"
    unproven = "" if profile.batchable else ", on by function.toml, not proven"
    return f"up to {rows} rows{unproven}{_contention(profile)}"


def with_refutation(profile: Profile, earlier: Profile | None) -> Profile:
    """Return `profile` with the refutation of an earlier profile of the same model, if any."""
    if earlier is None or earlier.model != profile.model or not earlier.refuted_at_runtime:
        return profile
    return replace(profile, refuted_at_runtime=earlier.refuted_at_runtime)


def _contention(profile: Profile) -> str:
    """Return whether the times behind a verdict were measured on a busy machine, and when they are
    measured again; "" if they were not, or if the verdict does not depend on them."""
    if profile.contention.state != "busy":
        return ""
    if not profile.contention.again_s:
        return f"; {BUSY}, as often as it was measured: fnctl deploy --measure repeats it"
    at = datetime.fromtimestamp(profile.contention.again_s, UTC)
    return f"; {BUSY}, again once it is idle, from {at:%Y-%m-%d %H:%M} UTC"


def _why_off(revision: Revision, profile: Profile) -> str:
    """Return why rows may not be joined, "" if they may."""
    mode = revision.batching.mode
    if mode == "off":
        return "as set in function.toml"
    if revision.handler and mode != "always":
        return HANDLER
    if not is_current(revision, profile):
        return NOT_ANALYSED if is_stale(revision, profile) else profile.why_not or NOT_ANALYSED
    if profile.refuted_at_runtime:
        return f"a joined run lost rows: {profile.refuted_at_runtime}"
    may_join = profile.compared if mode == "always" else profile.batchable
    return "" if may_join else profile.why_not or profile.note or "not proven"

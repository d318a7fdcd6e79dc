"""Decides when a model that was measured on a busy machine is measured again. Pure.

The attempts and the time of the next one are part of the stored profile, so a server that was
killed neither forgets a measurement nor repeats one without end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from registry.model.profiles import Contention, Profile
from registry.model.revisions import Revision
from runtime_image.contract.contention import ContentionState

PAUSES_S: Final = (60.0, 600.0, 3600.0, 21_600.0)
"""Pauses in seconds before the measurements that follow the first one; their number is the max
number of attempts."""


def measured(state: ContentionState, now_s: float, attempts: int = 0) -> Contention:
    """Return the contention of a new measurement, which `attempts` others preceded since the
    deploy. `now_s` is Unix time."""
    if state != "busy" or attempts >= len(PAUSES_S):
        return Contention(state, attempts)
    return Contention(state, attempts, now_s + PAUSES_S[attempts])


def begun(profile: Profile, now_s: float) -> Profile:
    """Return the profile to be stored before another measurement begins: if the server is killed
    during it, the attempt counts."""
    attempts = profile.contention.attempts + 1
    return replace(profile, contention=measured(profile.contention.state, now_s, attempts))


def given_way(profile: Profile, now_s: float) -> Profile:
    """Return the profile after a measurement that was ended for a call: it does not count, and
    begins again after the pause."""
    attempts = max(0, profile.contention.attempts - 1)
    return replace(profile, contention=measured(profile.contention.state, now_s, attempts))


def is_due(revision: Revision, profile: Profile | None, now_s: float) -> bool:
    """Return whether a revision is measured again as soon as the machine is idle."""
    if profile is None or revision.server or revision.batching.mode == "off":
        return False
    if profile.refuted_at_runtime:
        return False
    again_s = profile.contention.again_s
    return profile.contention.state == "busy" and 0 < again_s <= now_s


def remeasured(old: Profile, new: Profile, now_s: float) -> Profile:
    """Return `old` with the times and the verdict of `new`, another trial of the same files.

    What serves stays: the prepared files, and the chosen candidate. If the trial chose another one,
    its times are not those of what serves, and the old ones stay.
    """
    attempts = old.contention.attempts
    if candidate(old) != candidate(new):
        return replace(old, contention=measured(old.contention.state, now_s, attempts))
    return replace(
        new,
        load_ms=old.load_ms,
        memory_mib=max(old.memory_mib, new.memory_mib),
        prepared=old.prepared,
        why_not_prepared=old.why_not_prepared,
        optimised=old.optimised,
        contention=measured(new.contention.state, now_s, attempts),
    )


def candidate(profile: Profile) -> str:
    """Return the sha256 of the candidate that was measured, "" for the model itself."""
    file = profile.optimised.file if profile.optimised else None
    return file.sha256 if file else ""


class IdleMachine:
    """Whether a machine has been idle for long enough, from looks at it. `now` is monotonic."""

    def __init__(self, enough_s: float) -> None:
        self._enough_s = enough_s
        self._since_s: float | None = None

    def look(self, now_s: float, *, is_idle: bool) -> bool:
        """Note whether the machine was idle since the last look; return whether it has been for
        `enough_s`."""
        if not is_idle:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        return self._since_s is not None and now_s - self._since_s >= self._enough_s

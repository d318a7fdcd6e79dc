"""When the golden samples of idle servers are asked, and what their answers say. Pure.

A *check* of a replica is one ask of its golden sample, or two if the first was answered wrong: a
wrong answer counts once it is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from runtime_image.contract.samples import SampleVerdict

AT_ONCE: Final = 4
"""Max golden samples that are asked at once."""


class Idle(NamedTuple):
    """A ready replica that has a golden sample, and whose pool has no calls. Times in seconds."""

    id: str
    ready_s: float
    every_s: float
    """Interval of its checks, above 0."""


class Stage(Enum):
    """Where the check of a replica is."""

    RESTING = "resting"
    """Between two checks."""
    ASKED = "asked"
    """Asked the first time."""
    DOUBTED = "doubted"
    """Answered wrong once; it is to be asked again."""
    CONFIRMING = "confirming"
    """Asked the second time."""


@dataclass(slots=True)
class _Check:
    stage: Stage = Stage.RESTING
    over_s: float = float("-inf")
    """When the last check was over."""
    verdict: SampleVerdict = SampleVerdict.NONE
    """That of the last check which had one."""


class Checked(NamedTuple):
    """A check that is over. `before` is the verdict of the check before, NONE for none."""

    verdict: SampleVerdict
    before: SampleVerdict


class SampleSchedule:
    """Checks of the replicas of one manager. `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._checks: dict[str, _Check] = {}

    def due(self, idle: Sequence[Idle], present: Collection[str], now: float) -> list[str]:
        """Return the replicas to ask now: doubted ones first, then those whose check is the most
        overdue. Each is answered by `answered`, once. Replicas that are not `present` are
        forgotten."""
        self._checks = {id: one for id, one in self._checks.items() if id in present}
        asked = sum(one.stage in (Stage.ASKED, Stage.CONFIRMING) for one in self._checks.values())
        waiting = []
        for one in idle:
            check = self._checks.setdefault(one.id, _Check())
            overdue_s = now - max(check.over_s, one.ready_s) - one.every_s
            if check.stage is Stage.DOUBTED:
                waiting.append((float("-inf"), one.id))
            elif check.stage is Stage.RESTING and overdue_s >= 0:
                waiting.append((-overdue_s, one.id))
        chosen = [id for _, id in sorted(waiting)[: max(0, AT_ONCE - asked)]]
        for id in chosen:
            check = self._checks[id]
            is_doubted = check.stage is Stage.DOUBTED
            check.stage = Stage.CONFIRMING if is_doubted else Stage.ASKED
        return chosen

    def answered(self, id: str, verdict: SampleVerdict, now: float) -> Checked | None:
        """Note the answer of a replica; return the end of its check, None if it is asked again or
        is gone. NONE says nothing: the verdict before stays."""
        check = self._checks.get(id)
        if check is None:
            return None
        if verdict is SampleVerdict.WRONG and check.stage is Stage.ASKED:
            check.stage = Stage.DOUBTED
            return None
        before = check.verdict
        check.stage, check.over_s = Stage.RESTING, now
        if verdict is not SampleVerdict.NONE:
            check.verdict = verdict
        return Checked(verdict, before)

    def verdict(self, id: str) -> SampleVerdict:
        """Return the verdict of a replica's last check that had one."""
        check = self._checks.get(id)
        return check.verdict if check is not None else SampleVerdict.NONE

"""Bounds which functions a page shows: the numbers of all others go together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock

from admin.workers.cells import Sample
from gateway.metrics.families import FUNCTIONS_MAX, OTHERS

Owner = tuple[str, str]
"""A function's namespace and name."""
Numbers = dict[Sample, float]


class Folding:
    """Each gateway process gives series of their own to the first functions that are called there:
    those of all processes, and of their predecessors, are many more than one page can hold.

    A function that was once shown by itself stays so until it is removed. What was shown of a
    removed one among the others stays there: a counter that falls is taken for one that began anew.
    In any thread.
    """

    def __init__(
        self, is_deployed: Callable[[str, str], bool], functions_max: int = FUNCTIONS_MAX
    ) -> None:
        self._is_deployed = is_deployed
        self._functions_max = functions_max
        self._lock = Lock()
        self._alone: set[Owner] = set()
        self._folded: dict[Owner, Numbers] = {}
        self._left: Numbers = {}

    def fold(self, numbers: Mapping[Sample, float]) -> Numbers:
        """The same, of no more functions than are shown."""
        with self._lock:
            found, self._folded = dict(self._left), {}
            for sample, value in numbers.items():
                owner = sample.owner
                if owner[1] in ("", OTHERS) or self._stands_alone(owner):
                    found[sample] = found.get(sample, 0.0) + value
                elif self._is_deployed(*owner):
                    self._folded.setdefault(owner, {})[sample] = value
            for folded in self._folded.values():
                _add(found, folded)
            return found

    def forget(self, owner: Owner) -> None:
        """The function is removed."""
        with self._lock:
            self._alone.discard(owner)
            _add(self._left, self._folded.pop(owner, {}))

    def _stands_alone(self, owner: Owner) -> bool:
        if not self._is_deployed(*owner):
            return False  # its process has not heard of that yet
        if owner not in self._alone and len(self._alone) < self._functions_max:
            self._alone.add(owner)
        return owner in self._alone


def _add(numbers: Numbers, folded: Mapping[Sample, float]) -> None:
    for sample, value in folded.items():
        other = _of_others(sample)
        numbers[other] = numbers.get(other, 0.0) + value


def _of_others(sample: Sample) -> Sample:
    labels = [text for pair in {**sample.by_label, "function": OTHERS}.items() for text in pair]
    return Sample(sample.name, tuple(labels))

"""All that is fuzzed. The seeded generator, the attack and the tests read this list."""

from __future__ import annotations

from tests.fuzz.subject import Subject
from tests.fuzz.subjects.bodies import BODIES
from tests.fuzz.subjects.builders import BUILDERS
from tests.fuzz.subjects.fields import FIELDS
from tests.fuzz.subjects.files import FILES
from tests.fuzz.subjects.heads import HEADS
from tests.fuzz.subjects.health import HEALTHS
from tests.fuzz.subjects.needs import NEEDS

SUBJECTS: tuple[Subject, ...] = (*BUILDERS, *HEADS, *BODIES, *FIELDS, *FILES, *NEEDS, *HEALTHS)

"""The table of rules as a whole."""

from __future__ import annotations

from onnx import defs

from runtime_image.verification.rows import analysis, numbering
from runtime_image.verification.rows.graph import OWN
from runtime_image.verification.rows.rules.registry import MICROSOFT, RULES

RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}


def known_versions() -> set[tuple[str, str, int]]:
    return {
        (schema.domain, schema.name, schema.since_version)
        for schema in defs.get_all_schemas_with_history()
    }


def test_rules_name_versions_that_exist() -> None:
    """A wrong opset number would be a rule that never applies, or a version that was never
    reviewed."""
    assert analysis.FAMILIES
    ours = {key for key in RULES if key[0] != MICROSOFT and key[1] not in OWN}
    numbered = {("", *key) for key in (*numbering.EVALUATORS, *numbering.SOURCES)}
    assert (ours | numbered) - known_versions() == set()
    assert {version for domain, _, version in RULES if domain == MICROSOFT} == {1}


def test_no_rule_speaks_of_chance() -> None:
    """No rule covers a random operator, whose results differ between runs."""
    assert {name for _, name, _ in RULES} & {*RANDOM, "RandomUniformLike"} == set()

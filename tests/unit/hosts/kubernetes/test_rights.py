"""All that the roles grant is used, and all that the code asks for is granted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hosts.kubernetes import objects
from hosts.kubernetes.objects import Kind
from hosts.kubernetes.rights import IN_CLUSTER, IN_NAMESPACE, Grant

ROOT = Path(objects.__file__).parents[2]
FOLDERS = ("hosts/kubernetes", "pool_manager/hosts/kubernetes", "admin")
"""Where the API server is asked."""
VERBS = {"get", "list", "watch", "create", "delete", "patch"}
KINDS = {name: kind for name, kind in vars(objects).items() if isinstance(kind, Kind)}
Use = tuple[str, str]
"""A resource and a verb."""


def test_the_rights_are_those_that_are_used() -> None:
    """Neither more nor less, for each kind and verb."""
    granted = {(one.resource, verb) for one in (*IN_NAMESPACE, *IN_CLUSTER) for verb in one.verbs}

    used = {use for source in sources() for use in uses(ast.parse(source.read_text()))}

    assert granted == used


def test_rights_are_where_their_kinds_are() -> None:
    """Rights of the namespace are for kinds in one; no grant is there twice."""
    assert all(one.kind.is_namespaced for one in IN_NAMESPACE)
    assert not any(one.kind.is_namespaced for one in IN_CLUSTER)
    names = [(one.group, one.resource) for one in (*IN_NAMESPACE, *IN_CLUSTER)]
    assert len(set(names)) == len(names)


def test_nothing_opens_a_container_or_reads_a_secret() -> None:
    """The server can neither run commands in Pods nor read Secrets."""
    verbs = {one.resource: set(one.verbs) for one in IN_NAMESPACE}
    assert verbs["secrets"] == {"create", "delete"}
    assert not {"pods/exec", "pods/attach", "pods/portforward", "*"} & verbs.keys()
    assert all("*" not in one.verbs for one in (*IN_NAMESPACE, *IN_CLUSTER))
    assert Grant(objects.PODS, ("get",), "log").resource == "pods/log"


def sources() -> Iterator[Path]:
    """Yield the modules that may hold a client."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if "kubernetes" in path.read_text():
                yield path


def uses(tree: ast.AST) -> Iterator[Use]:
    """Yield the requests of a module: calls of a client's verbs with a kind, and reflectors, which
    list and watch theirs."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Name):
            name = node.func.id
        if name == "log" and len(node.args) >= 2 and isinstance(node.func, ast.Attribute):
            yield "pods/log", "get"
        for kind in (
            KINDS[arg.id] for arg in node.args if isinstance(arg, ast.Name) and arg.id in KINDS
        ):
            below = next((x.value for x in node.keywords if x.arg == "subresource"), None)
            resource = kind.plural
            if isinstance(below, ast.Constant) and below.value:
                resource += f"/{below.value}"
            if name.removeprefix("_") in VERBS:  # of a client, or of a method that passes it on
                yield resource, name.removeprefix("_")
            elif name == "Reflector":
                yield from ((resource, verb) for verb in ("list", "watch"))

"""Finds the compiled model of a revision."""

from __future__ import annotations

from registry.builds import Target
from registry.catalog import Catalog, Deployed
from registry.compilation import Compiled, target_of
from registry.store.builds import BuildStore
from runtime_image.contract.compiled import CompilerName


class CompiledModels:
    """The compiled models of revisions. `compiler` is the server's setting."""

    def __init__(self, builds: BuildStore, compiler: CompilerName) -> None:
        self._builds = builds
        self.compiler: CompilerName = compiler

    def target(self, deployed: Deployed) -> Target | str:
        """Return the target of a revision on any type of device, or why there is none; "" if no
        compiled model is requested."""
        return target_of(deployed, self.compiler)

    def of(self, deployed: Deployed) -> list[Compiled]:
        """Return the compiled models of a revision, one for each type of device that has one."""
        target = self.target(deployed)
        return [] if isinstance(target, str) else self._builds.compiled_in(target.group)

    def summary(self, deployed: Deployed) -> str:
        """Return the line of a deploy about the compiled model of a revision, "" if none is
        requested."""
        target = self.target(deployed)
        if isinstance(target, str):
            return f"no: {target}" if target else ""
        if self._builds.compiled_in(target.group):
            return "yes, by an earlier build"
        name = deployed.function.name
        return f"not yet: a build begins when a device is free; fnctl prepare {name} follows it"

    def groups(self, catalog: Catalog) -> set[str]:
        """Return the groups of the targets of all revisions."""
        found = map(self.target, catalog.every())
        return {one.group for one in found if isinstance(one, Target)}

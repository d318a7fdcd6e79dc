"""Models as clients of the protocol see them: rights, names, index, statistics. REST and gRPC share
this; only the forms of requests and answers differ."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gateway.oip.documents import READY, all_served, current_revisions, index_entry
from gateway.oip.names import find_served, served_name, served_version
from gateway.oip.statistics import Served, document
from registry.errors import NotServed, ShuttingDown, WrongScope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.access import Credential, Need
    from gateway.http.context import Invoker
    from gateway.ports import ModelControl
    from registry.catalog import Deployed

RETRY_S: Final = 5.0


class ServedModels:
    """The models of one gateway process. `credential`: the caller's."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker

    def check_caller(self, credential: Credential) -> None:
        """Raise NoKey unless the caller has any key, or needs none."""
        self._invoker.access.check_caller(credential)

    def check(self, credential: Credential, need: Need, name: str = "") -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`, for function `name`.

        Of a caller who is let in without a key, only `admin` needs one.
        """
        access = self._invoker.access
        if need == "admin" or not access.lets_in(credential):
            access.check(credential, need, name)

    def find(self, credential: Credential, need: Need, name: str, version: str = "") -> Deployed:
        """Return the revision that answers for a version of a model. Raises FnError, first for a
        lack of rights: a caller whose key is for one function learns of no other names."""
        found = self._invoker.catalog.find_oip(name, version)
        self.check(credential, need, name if found is None else found.function.name)
        may_see = partial(self._may, credential, need)
        return find_served(self._invoker.catalog, name, version, may_see)

    def _may(self, credential: Credential, need: Need, name: str) -> bool:
        try:
            self.check(credential, need, name)
        except WrongScope:
            return False
        return True

    def versions(self, deployed: Deployed) -> list[Deployed]:
        """Return the revision that answers for each version of a model."""
        return current_revisions(self._invoker.catalog, deployed)

    def all(self) -> list[Deployed]:
        """Return the revisions of all models, as `versions`."""
        return all_served(self._invoker.catalog)

    def index(self, credential: Credential, *, only_ready: bool) -> list[dict[str, str]]:
        """Return every version of the models that the caller may invoke. Raises NoKey."""
        self.check_caller(credential)
        access, delivery = self._invoker.access, self._invoker.delivery
        mine: Iterable[Deployed] = (
            one for one in self.all() if access.allows(credential, "invoke", one.function.name)
        )
        entries = [index_entry(one, delivery.endpoints(one.revision.key)) for one in mine]
        return [one for one in entries if not only_ready or one["state"] == READY]

    async def statistics(self, revisions: Sequence[Deployed]) -> dict[str, Any]:
        """Return the statistics of revisions as the protocol's document."""
        pools = [one.revision.key for one in revisions]
        found = await self._invoker.statistics.statistics(pools)
        return document(
            Served(served_name(one), served_version(one), numbers)
            for one, numbers in zip(revisions, found, strict=True)
        )

    def check_open(self) -> None:
        """Raise ShuttingDown once no calls are accepted any more."""
        if not self._invoker.gate.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=RETRY_S)

    @property
    def control(self) -> ModelControl:
        """What loads and unloads models. Raises NotServed without it."""
        control = self._invoker.model_control
        if control is None:
            raise NotServed("this process can neither load nor unload models")
        return control

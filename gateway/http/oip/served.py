"""Models as clients of the protocol see them: rights, names, index, statistics. REST and gRPC share
this; only the forms of requests and answers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admission.credentials import Realm
from gateway.oip.documents import READY, all_served, current_revisions, index_entry
from gateway.oip.names import served_name, served_version
from gateway.oip.statistics import Served, document
from registry.errors import NotServed, ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.admission.callers import Caller, Need
    from gateway.admission.credentials import Credential
    from gateway.http.context import Invoker
    from gateway.ports import ModelControl
    from registry.catalog import Deployed

RETRY_S: Final = 5.0


class ServedModels:
    """The models of one gateway process. `credential`: the caller's."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker

    def identify(self, credential: Credential) -> Caller:
        """Return who sends a request. Raises NoKey."""
        return self._invoker.access.identify(credential, Realm.CALLS)

    def check(self, credential: Credential, need: Need) -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`."""
        self._invoker.admission.enter(credential, need)

    def find(self, credential: Credential, need: Need, name: str, version: str = "") -> Deployed:
        """Return the revision that answers for a version of a model. Raises FnError."""
        return self._invoker.admission.find_served(credential, need, name, version).deployed

    def versions(self, deployed: Deployed) -> list[Deployed]:
        """Return the revision that answers for each version of a model."""
        return current_revisions(self._invoker.catalog, deployed)

    def all(self) -> list[Deployed]:
        """Return the revisions of all models, as `versions`."""
        return all_served(self._invoker.catalog)

    def index(self, credential: Credential, *, only_ready: bool) -> list[dict[str, str]]:
        """Return every version of the models that the caller may invoke. Raises NoKey."""
        caller, delivery = self.identify(credential), self._invoker.delivery
        mine = (one for one in self.all() if caller.may_invoke(one.function.name))
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

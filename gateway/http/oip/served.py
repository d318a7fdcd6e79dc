"""Models as clients of the protocol see them: rights, names, index, statistics. REST and gRPC share
this; only the forms of requests and answers differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.admission.credentials import Realm
from gateway.oip.documents import (
    READY,
    all_served,
    current_revisions,
    index_entry,
    model_config,
    model_metadata,
)
from gateway.oip.names import served_name, served_version
from gateway.oip.repository import check_load, check_unload
from gateway.oip.statistics import Statistics, model_statistics
from gateway.waits import OpenWaits, shutting_down
from registry.errors import NotServed

if TYPE_CHECKING:
    from gateway.admission.callers import Caller
    from gateway.admission.credentials import Credential
    from gateway.http.context import Invoker
    from gateway.ports import ModelControl
    from registry.catalog import Deployed
    from registry.model.keys import Need


class ServedModels:
    """The models of one gateway process. `credential`: the caller's."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker
        self.waits: Final = OpenWaits()
        """Requests that wait for a model to be loaded."""

    def identify(self, credential: Credential) -> Caller:
        """Return who sends a request. Raises NoKey."""
        return self._invoker.access.identify(credential, Realm.CALLS)

    def check(self, credential: Credential, need: Need) -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`."""
        self._invoker.admission.enter(credential, need)

    def find(self, credential: Credential, need: Need, name: str, version: str = "") -> Deployed:
        """Return the revision that answers for a version of a model. Raises FnError."""
        return self._invoker.admission.find_served(credential, need, name, version).deployed

    def metadata(self, found: Deployed) -> dict[str, Any]:
        """Return the metadata of a model as the protocol's document."""
        return model_metadata(found, current_revisions(self._invoker.catalog, found))

    def config(self, found: Deployed) -> dict[str, Any]:
        """Return the configuration of a model as the protocol's document."""
        return model_config(found, current_revisions(self._invoker.catalog, found))

    def index(self, credential: Credential, *, only_ready: bool) -> list[dict[str, str]]:
        """Return every version of the models that the caller may invoke. Raises NoKey."""
        caller, delivery = self.identify(credential), self._invoker.delivery
        mine = (
            one for one in all_served(self._invoker.catalog) if caller.may_invoke(one.function.name)
        )
        entries = [index_entry(one, delivery.endpoints(one.revision.key)) for one in mine]
        return [one for one in entries if not only_ready or one["state"] == READY]

    async def statistics(
        self, found: Deployed | None = None, *, is_one: bool = False
    ) -> Statistics:
        """Return the statistics of every version of a model, or with `is_one` of this one; of all
        models without one. Nothing wakes; a cold model has those since the server's start."""
        catalog = self._invoker.catalog
        if found is None:
            revisions = all_served(catalog)
        else:
            revisions = [found] if is_one else current_revisions(catalog, found)
        pools = [one.revision.key for one in revisions]
        counted = await self._invoker.statistics.statistics(pools)
        return Statistics(
            [
                model_statistics(served_name(one), served_version(one), numbers)
                for one, numbers in zip(revisions, counted, strict=True)
            ]
        )

    async def load(
        self, found: Deployed, body: bytes, wait_s: float, party: str | None = None
    ) -> None:
        """Return once a replica of a model is ready, at most `wait_s` later. `body`: of the request
        over REST; `party` as in `OpenWaits.run`. Raises FnError."""
        check_load(body)
        self.check_open()
        await self.waits.run(self._control.load(found, wait_s), party)

    async def unload(self, found: Deployed, body: bytes) -> None:
        """Let the replicas of a model stop when they are idle, and return at once. `body`: of the
        request over REST. Raises FnError."""
        check_unload(body)
        await self._control.unload(found)

    def check_open(self) -> None:
        """Raise ShuttingDown once no calls are accepted any more."""
        if not self._invoker.gate.is_open:
            raise shutting_down()

    @property
    def _control(self) -> ModelControl:
        """What loads and unloads models. Raises NotServed without it."""
        control = self._invoker.model_control
        if control is None:
            raise NotServed("this process can neither load nor unload models")
        return control

"""The applier: writes a plan to placement, one operation after the other."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import SystemRandom
from typing import TypeVar

from agent.errors import (
    ApplyError,
    IdentityError,
    PlacementConflict,
    PlacementError,
    PlacementUnavailable,
)
from agent.placement.client import PlacementClient
from agent.placement.replies import DUPLICATE_NAME
from agent.providers.plan import (
    ContentsOperation,
    CreateProvider,
    CreateResourceClass,
    CreateTrait,
    DeleteInventories,
    DeleteProvider,
    MoveProvider,
    Operation,
    Plan,
    PutAggregates,
    PutInventories,
    PutTraits,
    RenameProvider,
    same_inventories,
    with_contents,
)
from agent.tree import Inventory, Provider, ProviderTree

ATTEMPTS_MAX = 4
PAUSE_MAX_S = 0.2
OFFER_RAISES = 2
"""By how much a reshape raises the generation of a provider that had no inventory. Where a service did it
otherwise, the next write or read of the provider would notice and read it again."""

NAMES = (CreateResourceClass, CreateTrait)
_BAD_REQUEST = 400

_JITTER = SystemRandom()
_Value = TypeVar("_Value")


def apply(
    plan: Plan,
    client: PlacementClient,
    current: ProviderTree,
    *,
    sleep: Callable[[float], None] = time.sleep,
    read_again: Callable[[str], None] = lambda _: None,
) -> ProviderTree:
    """Write the plan, made from `current`, and return the tree as placement now has it.

    One request an operation, and one for all the inventories together that are offered for the first time;
    traits and resource classes are made where placement turns out not to know them, which a fleet's does. A
    provider whose generation was raised in between (a claim does that) is read again, it alone, `read_again`
    is told its uuid, and the operation is written once more if what it changes is still as it was when the
    plan was made; others' changes beside it are kept. Raises PlacementConflict where it is not, or after
    ATTEMPTS_MAX writes: read the tree and plan again; IdentityError where a name or uuid of ours belongs to
    a provider outside our tree; ApplyError, caused by the PlacementError, for all else.
    """
    names = [each for each in plan.operations if isinstance(each, NAMES)]
    writer = _Writer(client, current, sleep, read_again, names)
    for batch in _batches(each for each in plan.operations if not isinstance(each, NAMES)):
        with _told(plan, batch[0], writer.done):
            offered = writer.offer(batch)
        if offered:
            writer.done.extend(operation.line() for operation in batch)
            continue
        for operation in batch:
            with _told(plan, operation, writer.done):
                writer.write(operation)
            writer.done.append(operation.line())
    for operation in writer.unused_names():
        with _told(plan, operation, writer.done):
            writer.make(operation)
    return writer.tree


def _batches(operations: Iterable[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Each operation by itself, but inventories together that are offered one after the other on providers
    that had none."""
    batch: list[Operation] = []
    for operation in operations:
        if isinstance(operation, PutInventories) and not operation.before:
            batch.append(operation)
            continue
        if batch:
            yield tuple(batch)
            batch = []
        yield (operation,)
    if batch:
        yield tuple(batch)


@contextmanager
def _told(plan: Plan, operation: Operation, done: list[str]) -> Iterator[None]:
    """Raises ApplyError for a PlacementError, except for a PlacementConflict, which asks for another plan."""
    try:
        yield
    except PlacementConflict:
        raise
    except PlacementError as error:
        raise ApplyError(
            f"Placement stopped the plan at operation {plan.operations.index(operation) + 1} of "
            f"{len(plan.operations)} "
            f"({operation.line().rstrip('.')}): {error.message} What was done before stays and the next "
            "pass goes on from there.",
            operation=operation.to_json(),
            done=done,
            cause=error.code,
        ) from error


class _Writer:
    """Writes operations with the generations that it knows, and keeps track of them.

    `names` are made together, at the first request that placement refuses as long as they are not.
    """

    def __init__(
        self,
        client: PlacementClient,
        current: ProviderTree,
        sleep: Callable[[float], None],
        read_again: Callable[[str], None],
        names: Sequence[CreateResourceClass | CreateTrait],
    ) -> None:
        self._client = client
        self._names = list(names)
        self._known: set[CreateResourceClass | CreateTrait] = set()
        self.done: list[str] = []
        self._providers = {provider.uuid: provider for provider in current}
        self._sleep = sleep
        self._read_again = read_again

    @property
    def tree(self) -> ProviderTree:
        return ProviderTree(self._providers.values())

    def unused_names(self) -> Sequence[CreateResourceClass | CreateTrait]:
        """Those of which no request told that placement has them: a reshape needs them next."""
        return [each for each in self._names if each not in self._known]

    def make(self, name: CreateResourceClass | CreateTrait) -> None:
        if isinstance(name, CreateTrait):
            self._client.ensure_trait(name.name)
        else:
            self._client.ensure_resource_class(name.name)
        self._names.remove(name)
        self.done.append(name.line())

    def offer(self, batch: Sequence[Operation]) -> bool:
        """Offer the inventories of several providers that had none in one request, all of them or none.

        False: that is not what the batch is, or placement refuses, and each is to be written by itself.
        """
        offers = [each for each in batch if isinstance(each, PutInventories)]
        now = [self._providers[each.provider] for each in offers]
        if len(offers) < 2 or any(provider.inventories for provider in now):
            return False
        wanted = {
            each.provider: (of.generation or 0, each.after) for each, of in zip(offers, now, strict=True)
        }
        try:
            self._named(lambda: self._client.reshape(wanted))
        except PlacementUnavailable:
            raise
        except PlacementError:
            return False  # written one by one, it shows which of them is refused and why
        for each, of in zip(offers, now, strict=True):
            generation = (of.generation or 0) + OFFER_RAISES
            self._providers[of.uuid] = replace(of, inventories=each.after, generation=generation)
            self._known.update(map(CreateResourceClass, each.after))
        return True

    def _named(self, ask: Callable[[], _Value]) -> _Value:
        """Asked once more with the plan's names made, where placement may have missed one."""
        try:
            return ask()
        except PlacementError as error:
            if error.status != _BAD_REQUEST or not self._names:
                raise
        for name in list(self._names):
            self.make(name)
        return ask()

    def write(self, operation: Operation) -> None:
        match operation:
            case CreateProvider():
                self._providers[operation.provider] = self._create(operation)
            case RenameProvider():
                self._providers[operation.provider] = self._rename(operation)
            case MoveProvider():
                self._providers[operation.provider] = self._move(operation)
            case DeleteProvider():
                self._client.delete_provider(operation.provider)
                del self._providers[operation.provider]
            case PutTraits() | PutAggregates() | PutInventories() | DeleteInventories():
                self._providers[operation.provider] = self._change(operation)

    def _create(self, operation: CreateProvider) -> Provider:
        wanted = Provider(operation.provider, operation.name, operation.parent)
        try:
            return replace(wanted, generation=self._client.create_provider(wanted))
        except PlacementError as error:
            if error.placement_code != DUPLICATE_NAME:
                raise
            twin = self._client.find_provider(uuid=operation.provider)
            if twin is None:
                raise self._name_taken(operation.name) from error
            if (twin.name, twin.parent) != (wanted.name, wanted.parent):
                raise IdentityError(
                    f"Placement has a provider with the uuid {twin.uuid} already, named {twin.name!r}, where "
                    f"{wanted.name!r} was to be created: run `plimsoll adopt {twin.uuid}` if it is this one, "
                    "or delete it.",
                    uuid=twin.uuid,
                    name=twin.name,
                ) from error
            self._read_again(twin.uuid)
            return self._client.read_provider(twin)  # created by a request whose answer was lost

    def _rename(self, operation: RenameProvider) -> Provider:
        try:
            self._client.rename_provider(operation.provider, operation.after)
        except PlacementError as error:
            if error.placement_code != DUPLICATE_NAME:
                raise
            raise self._name_taken(operation.after) from error
        return replace(self._providers[operation.provider], name=operation.after)

    def _move(self, operation: MoveProvider) -> Provider:
        self._client.reparent_provider(operation.provider, operation.name, operation.after)
        return replace(self._providers[operation.provider], parent=operation.after)

    def _name_taken(self, name: str) -> PlacementError | IdentityError:
        holder = self._client.find_provider(name=name)
        if holder is None:
            return PlacementConflict(f"Provider {name!r} was taken a moment ago and is not now: plan again.")
        return IdentityError(
            f"Another provider in placement is named {name!r} already: {holder.uuid}, outside this host's "
            f"tree. Run `plimsoll adopt {holder.uuid}` if it is this host's, or rename or delete it.",
            uuid=holder.uuid,
            name=name,
        )

    def _change(self, operation: ContentsOperation) -> Provider:
        """Write an operation on what is on a provider, again from a fresh read after each conflict."""
        attempt = 1
        while True:
            now = self._providers[operation.provider]
            wanted = with_contents(now, _merged(operation, now))
            if _alike(now, wanted):
                return now
            try:
                return replace(wanted, generation=self._named(partial(self._put, operation, wanted)))
            except PlacementConflict:
                if attempt == ATTEMPTS_MAX:
                    raise
            if attempt > 1:
                self._sleep(_JITTER.uniform(0, PAUSE_MAX_S))
            self._read_again(now.uuid)
            self._providers[operation.provider] = self._client.read_provider(now)
            attempt += 1

    def _put(self, operation: ContentsOperation, wanted: Provider) -> int:
        generation = wanted.generation or 0
        match operation:
            case PutTraits():
                generation = self._client.put_traits(wanted.uuid, generation, wanted.traits)
                self._known.update(map(CreateTrait, wanted.traits))
            case PutAggregates():
                generation = self._client.put_aggregates(wanted.uuid, generation, wanted.aggregates)
            case PutInventories() | DeleteInventories():
                generation = self._client.put_inventories(wanted.uuid, generation, wanted.inventories)
                self._known.update(map(CreateResourceClass, wanted.inventories))
        return generation


def _alike(one: Provider, other: Provider) -> bool:
    return (one.traits, one.aggregates) == (other.traits, other.aggregates) and same_inventories(
        one.inventories, other.inventories
    )


def _merged(operation: ContentsOperation, now: Provider) -> ContentsOperation:
    """The operation as it is to be written on the provider as it is now.

    Raises PlacementConflict where an inventory that it changes is neither as planned nor as wanted.
    """
    match operation:
        case PutTraits():
            return replace(operation, after=_merged_names(operation, now.traits))
        case PutAggregates():
            return replace(operation, after=_merged_names(operation, now.aggregates))
        case PutInventories():
            return replace(operation, after=_merged_inventories(operation, now, operation.after))
        case DeleteInventories():
            left = _merged_inventories(operation, now, {})
            return PutInventories(operation.provider, operation.name, operation.before, left)


def _merged_names(operation: PutTraits | PutAggregates, now: frozenset[str]) -> frozenset[str]:
    return (now - (operation.before - operation.after)) | (operation.after - operation.before)


def _merged_inventories(
    operation: PutInventories | DeleteInventories, now: Provider, after: Mapping[str, Inventory]
) -> dict[str, Inventory]:
    merged = dict(now.inventories)
    for name in {**operation.before, **after}:
        planned, wanted = _only(operation.before, name), _only(after, name)
        if same_inventories(planned, wanted):
            continue
        found = _only(now.inventories, name)
        if not same_inventories(found, planned) and not same_inventories(found, wanted):
            raise PlacementConflict(
                f"Somebody else changed the inventory of {name} on provider {operation.name} "
                f"({operation.provider}) while it was being written: read the tree and plan again."
            )
        merged.pop(name, None)
        merged.update(wanted)
    return merged


def _only(values: Mapping[str, _Value], name: str) -> dict[str, _Value]:
    """The one entry, or none."""
    return {name: values[name]} if name in values else {}

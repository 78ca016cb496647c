"""Writes a plan to Placement, one operation after the other."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

from agent import errors, log
from agent.backoff import pause
from agent.placement.client import PlacementClient
from agent.placement.transport import DUPLICATE_NAME
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
)
from agent.tree import Inventory, Provider, ProviderTree

LOG = log.get(__name__)

ATTEMPTS_MAX = 12
RESHAPE_GENERATION_STEPS = 2
"""By how much POST /reshaper raises the generation of a provider that had no inventory. If a service raises
it otherwise, the next write or read of the provider conflicts and reads the provider again."""

NAMES = (CreateResourceClass, CreateTrait)
_BAD_REQUEST = 400

_Value = TypeVar("_Value")


def apply(
    plan: Plan,
    client: PlacementClient,
    current: ProviderTree,
    *,
    sleep: Callable[[float], None] = time.sleep,
    read_again: Callable[[str], None] = lambda _: None,
) -> ProviderTree:
    """Write the plan, which was made from `current`, and return the tree as Placement then has it.

    One request an operation, and one for the inventories of all providers that had none. Custom traits and
    resource classes are created only once Placement rejects a write for want of them: in a fleet it usually
    has them. If another client raised a provider's generation in between (a claim does that), the provider
    alone is read again, `read_again` is called with its uuid, and the operation is repeated if what it
    changes is still as it was when the plan was made. Other changes to the provider are kept.

    Raises PlacementConflict where it is not, or after ATTEMPTS_MAX attempts: read the tree and plan again;
    IdentityError where a provider outside this tree has the name or uuid of one in it; ApplyError, caused by
    the PlacementError, for all else.
    """
    names = [operation for operation in plan.operations if isinstance(operation, NAMES)]
    writer = _Writer(client, current, sleep, read_again, names)
    writes = (operation for operation in plan.operations if not isinstance(operation, NAMES))
    for are_first, group in groupby(
        writes, lambda each: isinstance(each, PutInventories) and not each.before
    ):
        batch = tuple(group)
        if are_first:
            # The first inventories of providers that follow each other in the plan.
            with _apply_errors(plan, batch[0], writer.done):
                reshaped = writer.reshape(batch)
            if reshaped:
                writer.done.extend(operation.line() for operation in batch)
                continue
        for operation in batch:
            with _apply_errors(plan, operation, writer.done):
                writer.write(operation)
            writer.done.append(operation.line())
    for name in writer.unverified_names():
        with _apply_errors(plan, name, writer.done):
            writer.create_name(name)
    return writer.tree


@contextmanager
def _apply_errors(plan: Plan, operation: Operation, done: list[str]) -> Iterator[None]:
    """Raise ApplyError for a PlacementError, but let a PlacementConflict pass: it needs another plan."""
    try:
        yield
    except errors.PlacementConflict:
        raise
    except errors.PlacementError as error:
        before = "The operations before it are done; the next pass does the rest."
        raise errors.ApplyError(
            f"Placement stopped the plan at operation {plan.operations.index(operation) + 1} of "
            f"{len(plan.operations)} "
            f"({operation.line().rstrip('.')}): {error.message} "
            f"{before if done else 'The next pass tries again.'}",
            operation=operation.to_json(),
            done=done,
            cause=error.code,
        ) from error


class _Writer:
    """Writes operations with the generations that it knows, and updates its copy of the providers.

    `names` are the plan's custom traits and classes, created together at the first request that Placement
    rejects without them. `done` collects a sentence for each completed operation.
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
        self._verified: set[CreateResourceClass | CreateTrait] = set()
        self.done: list[str] = []
        self._providers = {provider.uuid: provider for provider in current}
        self._sleep = sleep
        self._read_again = read_again

    @property
    def tree(self) -> ProviderTree:
        return ProviderTree(self._providers.values())

    def unverified_names(self) -> Sequence[CreateResourceClass | CreateTrait]:
        """The names that no accepted request contained: a reshape may need them next."""
        return [name for name in self._names if name not in self._verified]

    def create_name(self, name: CreateResourceClass | CreateTrait) -> None:
        if isinstance(name, CreateTrait):
            self._client.ensure_trait(name.name)
        else:
            self._client.ensure_resource_class(name.name)
        self._names.remove(name)
        self.done.append(name.line())

    def reshape(self, batch: Sequence[Operation]) -> bool:
        """Write the first inventories of several providers in one request, all or none.

        Returns False, without a change, if the batch is something else or Placement rejects it.
        """
        puts = [operation for operation in batch if isinstance(operation, PutInventories)]
        providers = [self._providers[put.provider] for put in puts]
        if len(puts) < 2 or any(provider.inventories for provider in providers):
            return False
        pairs = list(zip(puts, providers, strict=True))
        wanted = {put.provider: (provider.generation or 0, put.after) for put, provider in pairs}
        try:
            self._with_names(lambda: self._client.reshape(wanted))
        except errors.PlacementUnavailable:
            raise
        except errors.PlacementError:
            return False  # written one by one, the operations show which one is rejected and why
        for put, provider in pairs:
            generation = (provider.generation or 0) + RESHAPE_GENERATION_STEPS
            self._providers[provider.uuid] = replace(provider, inventories=put.after, generation=generation)
            self._verified.update(map(CreateResourceClass, put.after))
        return True

    def _with_names(self, send: Callable[[], _Value]) -> _Value:
        """Send a request. If Placement may reject it for a missing name, create the names and repeat."""
        try:
            return send()
        except errors.PlacementError as error:
            if error.status != _BAD_REQUEST or not self._names:
                raise
        for name in list(self._names):
            self.create_name(name)
        return send()

    def write(self, operation: Operation) -> None:
        match operation:
            case CreateProvider():
                self._providers[operation.provider] = self._create(operation)
            case RenameProvider():
                try:
                    self._client.rename_provider(operation.provider, operation.after)
                except errors.PlacementError as error:
                    if error.placement_code != DUPLICATE_NAME:
                        raise
                    root = self._providers[operation.provider].parent is None
                    raise self._name_taken(operation.after, root=root) from error
                renamed = replace(self._providers[operation.provider], name=operation.after)
                self._providers[operation.provider] = renamed
            case MoveProvider():
                self._client.reparent_provider(operation.provider, operation.name, operation.after)
                moved = replace(self._providers[operation.provider], parent=operation.after)
                self._providers[operation.provider] = moved
            case DeleteProvider():
                self._client.delete_provider(operation.provider)
                del self._providers[operation.provider]
            case PutTraits() | PutAggregates() | PutInventories() | DeleteInventories():
                self._providers[operation.provider] = self._change(operation)

    def _create(self, operation: CreateProvider) -> Provider:
        wanted = Provider(operation.provider, operation.name, operation.parent)
        try:
            return replace(wanted, generation=self._client.create_provider(wanted))
        except errors.PlacementError as error:
            if error.placement_code != DUPLICATE_NAME:
                raise
            twin = self._client.find_provider(uuid=operation.provider)
            if twin is None:
                raise self._name_taken(operation.name, root=operation.parent is None) from error
            if wanted.parent is not None and twin.parent != wanted.parent:
                raise self._taken_back(wanted) from error
            if (twin.name, twin.parent) != (wanted.name, wanted.parent):
                raise errors.IdentityError(
                    f"Placement already has a provider with the uuid {twin.uuid}, named {twin.name!r}, "
                    f"where the agent creates {wanted.name!r}: run `plimsoll adopt {twin.uuid}` if it "
                    "is this host, or delete it.",
                    uuid=twin.uuid,
                    name=twin.name,
                ) from error
            self._read_again(twin.uuid)
            return self._client.read_provider(twin)  # created by a request whose answer was lost

    def _taken_back(self, wanted: Provider) -> errors.PlacementConflict | errors.IdentityError:
        """Put a provider of this host back under its parent: another client took it out of the host's tree.

        Its uuid is made from the root's and its name, so it is no other's.
        """
        try:
            self._client.reparent_provider(wanted.uuid, wanted.name, wanted.parent)
        except errors.PlacementUnavailable:
            raise
        except errors.PlacementError as error:
            return errors.IdentityError(
                f"Another client took the provider {wanted.name} ({wanted.uuid}) out of this host's tree, "
                f"and the agent could not put it back: {error.message.rstrip('.')}. Put it back with "
                f"`openstack --os-placement-api-version 1.37 resource provider set --name {wanted.name} "
                f"--parent-provider {wanted.parent} {wanted.uuid}`.",
                uuid=wanted.uuid,
                name=wanted.name,
            )
        LOG.warning(
            "Another client took the provider %s (%s) out of this host's tree: the agent has put it back.",
            wanted.name,
            wanted.uuid,
        )
        return errors.PlacementConflict(
            f"The provider {wanted.name} ({wanted.uuid}) is in this host's tree again: plan again."
        )

    def _name_taken(self, name: str, *, root: bool) -> errors.PlacementError | errors.IdentityError:
        holder = self._client.find_provider(name=name)
        if holder is None:
            return errors.PlacementConflict(
                f"The name {name!r} belonged to another provider a moment ago and is free now: plan again."
            )
        remedy = f"Run `plimsoll adopt {holder.uuid}` if it is this host's, or rename or delete it."
        return errors.IdentityError(
            f"Another provider in Placement is already named {name!r}: {holder.uuid}, outside this host's "
            f"tree. {remedy if root else 'Rename or delete it.'}",
            uuid=holder.uuid,
            name=name,
        )

    def _change(self, operation: ContentsOperation) -> Provider:
        """Write an operation on a provider's contents; after each conflict, again from a fresh read.

        Raises PlacementConflict after ATTEMPTS_MAX attempts.
        """
        for attempt in range(ATTEMPTS_MAX):
            # After a conflict the agent's own claims on the provider wait, and do not interfere again.
            waiting = self._client.gate.held({operation.provider}) if attempt else nullcontext()
            with waiting:
                if attempt:
                    self._read_again(operation.provider)
                    known = self._providers[operation.provider]
                    self._providers[operation.provider] = self._client.read_provider(known)
                current = self._providers[operation.provider]
                uuid, generation = current.uuid, current.generation or 0
                # What other clients changed on the provider meanwhile stays.
                names: tuple[CreateTrait | CreateResourceClass, ...] = ()
                match operation:
                    case PutTraits():
                        wanted = replace(current, traits=_merged_names(operation, current.traits))
                        put = partial(self._client.put_traits, uuid, generation, wanted.traits)
                        names = tuple(map(CreateTrait, wanted.traits))
                    case PutAggregates():
                        wanted = replace(current, aggregates=_merged_names(operation, current.aggregates))
                        put = partial(self._client.put_aggregates, uuid, generation, wanted.aggregates)
                    case PutInventories() | DeleteInventories():
                        wanted = replace(current, inventories=_merged_inventories(operation, current))
                        put = partial(self._client.put_inventories, uuid, generation, wanted.inventories)
                        names = tuple(map(CreateResourceClass, wanted.inventories))
                names_differ = (current.traits, current.aggregates) != (wanted.traits, wanted.aggregates)
                if not names_differ and same_inventories(current.inventories, wanted.inventories):
                    return current
                try:
                    generation = self._with_names(put)
                except errors.PlacementConflict as conflict:
                    failure = conflict
                else:
                    self._verified.update(names)
                    return replace(wanted, generation=generation)
            if attempt + 1 < ATTEMPTS_MAX:
                pause(attempt, self._sleep)
        raise failure


def _merged_names(operation: PutTraits | PutAggregates, current: frozenset[str]) -> frozenset[str]:
    return (current - (operation.before - operation.after)) | (operation.after - operation.before)


def _merged_inventories(
    operation: PutInventories | DeleteInventories, current: Provider
) -> dict[str, Inventory]:
    """Raises PlacementConflict where another client changed an inventory that the operation changes."""
    after = operation.after if isinstance(operation, PutInventories) else {}
    merged = dict(current.inventories)
    for name in {**operation.before, **after}:
        planned, wanted = _entry(operation.before, name), _entry(after, name)
        if same_inventories(planned, wanted):
            continue
        present = _entry(current.inventories, name)
        if not same_inventories(present, planned) and not same_inventories(present, wanted):
            raise errors.PlacementConflict(
                f"Another client changed the inventory of {name} on provider {operation.name} "
                f"({operation.provider}) while the agent wrote it: read the tree and plan again."
            )
        merged.pop(name, None)
        merged.update(wanted)
    return merged


def _entry(values: Mapping[str, _Value], name: str) -> dict[str, _Value]:
    """The mapping with the one entry `name`, or empty."""
    return {name: values[name]} if name in values else {}

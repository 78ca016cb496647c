"""Reads a snapshot of a Placement service, imports one into another service, and removes one.

A snapshot is read over the API, or from the state directory of an embedded core. The cost of reading some
trees does not depend on how many other trees the service has, or on who writes there.

A plan of an import has three stages. Each may be interrupted anywhere and planned again; what was written is
verified at the end.

    1. Providers, with traits and aggregates, without inventories.
    2. Consumers, some at a time. One request (POST /reshaper) writes the allocations of some consumers
       together with the inventories that they are on, exactly as large as the allocations on them then. So
       another client cannot take what the next consumers need, and a snapshot with over-used inventories
       imports like any other.
    3. The final inventories.

To move a host to another Placement, its trees are imported and verified there first, and removed here last.
So at each moment at least one of the two services has the allocations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from agent import errors
from agent.errors import counted, first_few
from agent.placement.apply import apply
from agent.placement.client import (
    CONSUMER_TYPES,
    READERS,
    UNTYPED,
    ConsumerAllocations,
    PlacementClient,
    listed_provider,
)
from agent.placement.snapshot import (
    PlacementSnapshot,
    ServiceEvidence,
    broken_invariants,
    differences,
    foreign_consumers,
    same_consumer,
)
from agent.placement.transport import body_member
from agent.providers.plan import (
    CUSTOM,
    CreateResourceClass,
    CreateTrait,
    Operation,
    Plan,
    plan,
    same_inventories,
)
from agent.shapes import Amounts
from agent.tree import InventoriesByProvider, Inventory, Provider, ProviderTree

if TYPE_CHECKING:
    from agent.placement.embedded.model import Model

# Reading

ATTEMPTS_MAX = 3
NOT_FOUND = 404

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SnapshotClient(PlacementClient):
    """A Placement client that can also list all records."""

    def provider_roots(self, in_tree: str | None = None) -> tuple[list[Provider], dict[str, str]]:
        """All providers, or those of the tree that contains `in_tree`, without contents, and {uuid: root}."""
        query = "" if in_tree is None else f"?{urlencode({'in_tree': in_tree})}"
        records = self._list(f"/resource_providers{query}", "resource_providers")
        roots = {record["uuid"]: record["root_provider_uuid"] for record in records}
        return [listed_provider(record) for record in records], roots

    def summaries_with(self, resource_class: str) -> dict[str, Any]:
        """{provider uuid: its resources and traits} of all trees that have some of the class free."""
        action = f"show the providers of {resource_class}"
        reply = self._call("GET", f"/allocation_candidates?resources={resource_class}:1", action)
        return dict(body_member(reply, action, "provider_summaries", kind=dict))

    def trait_names(self) -> list[str]:
        """All traits that the service has."""
        return self._list("/traits", "traits")

    def resource_class_names(self) -> list[str]:
        """All resource classes that the service has."""
        return [record["name"] for record in self._list("/resource_classes", "resource_classes")]

    def _list(self, path: str, key: str) -> list[Any]:
        action = f"list its {key.replace('_', ' ')}"
        return list(body_member(self._call("GET", path, action), action, key, kind=list))

    def has_consumer_types(self) -> bool:
        """Whether consumers have types there, which is so from microversion 1.38 on."""
        return self.speaks(CONSUMER_TYPES)


def read_service(
    client: SnapshotClient, *, with_usages: bool = False
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """All records, over the API: four requests a provider (five `with_usages`) and one a consumer.

    Providers that other clients changed meanwhile are read again, in at most ATTEMPTS_MAX attempts; then it
    raises PlacementConflict. Placement does not raise a generation for each release, so no client should
    write meanwhile.
    """
    return _read(client, client.provider_roots, with_usages=with_usages)


def read_trees(client: SnapshotClient, names: Iterable[str]) -> PlacementSnapshot:
    """The trees of the providers with these names or uuids, and their consumers, over the API.

    If a consumer also has allocations in other trees, the providers of those come without contents. Names
    that the service does not have are left out. Raises as `read_service` does.
    """
    uuids = []
    for name in names:
        provider = client.find_provider(name=name)
        if provider is None:
            with suppress(ValueError):  # a name that is no uuid
                provider = client.find_provider(uuid=str(UUID(name)))
        if provider is not None:
            uuids.append(provider.uuid)
    snapshot, _ = _read(client, lambda: _list_trees(client, uuids))
    used = {uuid for consumer in snapshot.consumers.values() for uuid in consumer.allocations}
    elsewhere = sorted(used - snapshot.providers.keys())
    return _with_bare_providers(snapshot, _list_trees(client, elsewhere)[0])


def read_counterpart(
    client: SnapshotClient, wanted: PlacementSnapshot
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """The records of the service that correspond to `wanted`.

    These are the trees of its providers, their consumers, its consumers, and the trees of other providers
    that have a name of one of its providers (these without contents). Three requests for a provider that the
    service lacks, four or five for one that it has, and one for a consumer. Raises as `read_service` does.
    """
    roots = [uuid for uuid, provider in wanted.providers.items() if provider.parent not in wanted.providers]
    snapshot, evidence = _read(
        client, lambda: _list_trees(client, roots, wanted.providers), consumers=wanted.consumers.keys()
    )
    missing = [
        provider.name for provider in wanted.providers.values() if provider.uuid not in snapshot.providers
    ]
    holders = _map_parallel(lambda name: client.find_provider(name=name), missing)
    uuids = [holder.uuid for holder in holders if holder]
    return _with_bare_providers(snapshot, _list_trees(client, uuids)[0]), evidence


def _list_trees(client: SnapshotClient, *waves: Iterable[str]) -> tuple[list[Provider], dict[str, str]]:
    """The providers of the trees that contain these uuids, each once, and {provider: root}.

    The requests of a wave run in parallel. A wave skips the providers that an earlier wave listed.
    """
    providers: dict[str, Provider] = {}
    roots: dict[str, str] = {}
    for wave in waves:
        unknown = [uuid for uuid in wave if uuid not in providers]
        for listed, listed_roots in _map_parallel(lambda uuid: client.provider_roots(in_tree=uuid), unknown):
            providers |= {provider.uuid: provider for provider in listed}
            roots |= listed_roots
    return list(providers.values()), roots


def _with_bare_providers(snapshot: PlacementSnapshot, bare: Iterable[Provider]) -> PlacementSnapshot:
    others = {provider.uuid: provider for provider in bare}
    return replace(snapshot, providers={**others, **snapshot.providers})


def _read(
    client: SnapshotClient,
    list_providers: Callable[[], tuple[list[Provider], dict[str, str]]],
    *,
    consumers: Iterable[str] = (),
    with_usages: bool = False,
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """The listed providers, the consumers with allocations on them, and these `consumers`."""
    known: dict[str, Provider] = {}

    def read_provider(listed: Provider) -> Provider:
        before = known.get(listed.uuid)
        if before is not None and before.generation == listed.generation:
            return replace(before, name=listed.name, parent=listed.parent)
        return client.read_provider(listed)

    for _ in range(ATTEMPTS_MAX):
        try:
            listed, roots = list_providers()
        except errors.PlacementError as error:
            if error.status == NOT_FOUND:  # no list of a Placement is missing
                raise errors.PlacementError(
                    "No Placement answers there: the list of its resource providers was asked for, and the "
                    "answer has status 404. Check the URL, its path, too: many end in /placement.",
                    status=NOT_FOUND,
                ) from error
            raise
        try:
            known = {provider.uuid: provider for provider in _map_parallel(read_provider, listed)}
            held = dict(
                _map_parallel(lambda uuid: (uuid, client.provider_allocations(uuid).consumers), known)
            )
            usages = dict(
                _map_parallel(lambda uuid: (uuid, client.provider_usages(uuid)), known if with_usages else ())
            )
        except errors.PlacementError as error:
            if error.status != NOT_FOUND or isinstance(error, errors.PlacementUnavailable):
                raise
            continue  # another client deleted a provider meanwhile
        uuids = sorted({*consumers, *(consumer for holders in held.values() for consumer in holders)})
        read = [consumer for consumer in _map_parallel(client.allocations_of, uuids) if consumer.allocations]
        if _generations(list_providers()[0]) == _generations(known.values()):
            traits, classes = client.trait_names(), client.resource_class_names()
            snapshot = PlacementSnapshot.of(
                known.values(), read, _custom_names(traits), _custom_names(classes)
            )
            return snapshot, ServiceEvidence(roots, usages, held, frozenset((*traits, *classes)))
    raise errors.PlacementConflict(
        f"Other clients wrote to Placement during each of {ATTEMPTS_MAX} attempts to read it: stop the "
        "agents and schedulers that write to these providers, or try again at a quieter time."
    )


def read_fleet(client: SnapshotClient, classes: Iterable[str]) -> "tuple[Model, list[str]]":
    """The hosts of a service that lists none with their notes: as a model, and the names of those left out.

    One request lists the providers, and one for each class shows the trees that have some of it free. A host
    that has nothing of any of these free is left out.
    """
    from agent.placement.embedded.model import InventoryRecord, Model, ProviderRecord

    listed, roots = client.provider_roots()
    known, summaries = set(client.resource_class_names()), {}
    for name in sorted(known & set(classes)):
        summaries.update(client.summaries_with(name))
    records: list[ProviderRecord] = []
    used: dict[str, Mapping[str, int]] = {}
    for provider in listed:
        summary = summaries.get(provider.uuid)
        if summary is None:
            continue
        amounts = summary["resources"].items()
        inventories = {
            name: InventoryRecord(each["capacity"], 0, 1, max(1, each["capacity"]), 1, 1.0, 0.0)
            for name, each in amounts
        }
        records.append(
            ProviderRecord(
                provider.uuid,
                provider.name,
                provider.generation or 0,
                provider.parent,
                roots[provider.uuid],
                inventories,
                frozenset(summary["traits"]),
                frozenset(),
                0.0,
            )
        )
        taken = {name: each["used"] for name, each in amounts if each["used"]}
        if taken:
            used[provider.uuid] = taken
    model = Model(
        dict.fromkeys({name for record in records for name in record.traits}, 0.0), dict.fromkeys(known, 0.0)
    )
    model.load(records, ())
    model.usages.update(used)  # nothing tells whose it is
    return model, sorted(one.name for one in listed if one.parent is None and one.uuid not in summaries)


def read_state_dir(state_dir: Path) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """All records, from the database of an embedded core that does not run, which is not migrated.

    Raises UsageError where there is no such database, StateError where it cannot be used.
    """
    import tempfile

    from agent.durable.errors import DatabaseError
    from agent.durable.sqlite_file import copy_of_older
    from agent.placement.embedded.store import FILE_NAME, MIGRATIONS, SqliteHome, Store

    if not (state_dir / FILE_NAME).is_file():
        raise errors.UsageError(
            f"There is no placement database in {state_dir}: {FILE_NAME} is missing there."
        )
    try:
        with tempfile.TemporaryDirectory(prefix="plimsoll-") as name:
            is_older = copy_of_older(state_dir / FILE_NAME, len(MIGRATIONS), Path(name))
            home = SqliteHome.at(Path(name) if is_older else state_dir)
            store = Store(home)
            try:
                damage = [row[0] for row in home.read("PRAGMA integrity_check") if row[0] != "ok"]
                with store.reading() as model:
                    snapshot = _snapshot_of_model(model)
                    roots = {uuid: provider.root_uuid for uuid, provider in model.providers.items()}
                    names = frozenset((*model.traits, *model.resource_classes))
            finally:
                store.close()
    except DatabaseError as error:
        raise errors.StateError(str(error), path=str(error.path)) from error
    if damage:
        raise errors.StateError(
            f"{state_dir / FILE_NAME} is damaged ({damage[0]}): replace it by a backup.", findings=damage
        )
    return snapshot, ServiceEvidence(roots, names=names)


def _generations(providers: Iterable[Provider]) -> dict[str, int | None]:
    return {provider.uuid: provider.generation for provider in providers}


def _map_parallel(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """[work(item) for each item], with READERS threads."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(work, items))


def _snapshot_of_model(model: Any) -> PlacementSnapshot:
    return PlacementSnapshot.of(
        [
            Provider(
                record.uuid,
                record.name,
                record.parent_uuid,
                # The record of an inventory has the same fields in the same order, and then its time.
                {name: Inventory(*inventory[:-1]) for name, inventory in record.inventories.items()},
                record.traits,
                record.aggregates,
                record.generation,
            )
            for record in model.providers.values()
        ],
        [
            ConsumerAllocations(
                record.uuid,
                record.allocations,
                record.generation,
                record.project_id,
                record.user_id,
                record.consumer_type or UNTYPED,
            )
            for record in model.consumers.values()
        ],
        _custom_names(model.traits),
        _custom_names(model.resource_classes),
    )


def _custom_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(CUSTOM)]


# Import

WRITTEN_AT_ONCE = 50
REMOVED_AT_ONCE = 100
FORBIDDEN = 403
UNTYPED_MICROVERSION = "1.37"
"""The newest microversion that writes a consumer without a type."""

_CREATED_BY_IMPORT = ("unknown_class", "unknown_trait")
_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class ImportStep:
    """Some consumers, with the generations to overwrite, and the inventories that their allocations fill."""

    full: InventoriesByProvider
    consumers: tuple[ConsumerAllocations, ...]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The writes of an import in order: `providers`, `steps`, `inventories`; `current` is the tree before."""

    current: ProviderTree
    providers: Plan
    steps: tuple[ImportStep, ...]
    inventories: Plan

    @property
    def consumers(self) -> tuple[ConsumerAllocations, ...]:
        """All consumers to write."""
        return tuple(consumer for step in self.steps for consumer in step.consumers)

    @property
    def operations(self) -> int:
        """The number of writes to providers."""
        return len(self.providers.operations) + len(self.inventories.operations)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.providers.empty and not self.steps and self.inventories.empty

    def lines(self) -> Iterator[str]:
        """A sentence for each write."""
        yield from self.providers.lines()
        for consumer in self.consumers:
            allocations = "; ".join(
                ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) + f" on {provider}"
                for provider, amounts in consumer.allocations.items()
            )
            yield f"Write the allocations of consumer {consumer.consumer}: {allocations}."
        yield from self.inventories.lines()

    def to_json(self) -> dict[str, Any]:
        """The plan as `plimsoll placement import --dry-run -o json` prints it."""
        return {
            "build": self.providers.to_json(),
            "consumers": [consumer.consumer for consumer in self.consumers],
            "offer": self.inventories.to_json(),
        }


def plan_import(
    wanted: PlacementSnapshot, present: PlacementSnapshot, names: frozenset[str], *, overwrite: bool = False
) -> ImportPlan:
    """The writes after which a service that has `present` has every record of `wanted`. Pure.

    `names` are all traits and resource classes that the service has. Records that are in `present` only stay.
    Raises UsageError where `wanted` breaks an invariant that no service accepts; ImportRefused where the
    service lacks standard names, has another provider with the same name, or (without `overwrite`) has a
    record of `wanted` with other contents.
    """
    _check_import(wanted, present, names, overwrite=overwrite)
    current = ProviderTree(present.providers.values())
    desired = ProviderTree({**present.providers, **wanted.providers}.values())
    built = _with_inventories(desired, {provider.uuid: provider.inventories for provider in current}, {})
    steps = tuple(_steps(wanted, present))
    filled = _with_inventories(built, {uuid: full for step in steps for uuid, full in step.full.items()})
    providers = wanted.providers.values()
    classes = {name for provider in providers for name in provider.inventories if name.startswith(CUSTOM)}
    traits = {name for provider in providers for name in provider.traits if name.startswith(CUSTOM)}
    missing_classes = (classes | wanted.resource_classes) - present.resource_classes
    missing_traits = (traits | wanted.traits) - present.traits
    created: Iterable[Operation] = (
        *(CreateResourceClass(name) for name in sorted(missing_classes)),
        *(CreateTrait(name) for name in sorted(missing_traits)),
    )
    return ImportPlan(
        current,
        Plan((*created, *_without_names(plan(current, built)))),
        steps,
        Plan(tuple(_without_names(plan(filled, desired)))),
    )


def apply_import(client: PlacementClient, untyped: PlacementClient, wanted: ImportPlan) -> None:
    """Write the plan. `untyped` uses UNTYPED_MICROVERSION, for the consumers without a type.

    Raises what the client raises; the next import does the rest.
    """
    tree = apply(wanted.providers, client, wanted.current)
    for step in wanted.steps:
        # In one request, or in several if the service does not let the agent reshape. Between several
        # requests another client may take what the consumers need; then they no longer fit.
        writer = untyped if step.consumers[0].consumer_type == UNTYPED else client
        inventories = {uuid: (tree[uuid].generation or 0, full) for uuid, full in step.full.items()}
        try:
            writer.reshape(inventories, *step.consumers)
        except errors.PlacementError as error:
            if error.status != FORBIDDEN:
                raise
            for uuid, (generation, full) in inventories.items():
                writer.put_inventories(uuid, generation, {**tree[uuid].inventories, **full})
            writer.write_allocations(*step.consumers)
        roots = {tree.root_of(uuid).uuid for uuid in step.full}
        generations = {
            uuid: generation for root in roots for uuid, generation in client.generations(root).items()
        }
        tree = ProviderTree(
            replace(provider, generation=generations.get(provider.uuid, provider.generation))
            for provider in _with_inventories(tree, step.full)
        )
    apply(wanted.inventories, client, tree)


def _check_import(
    wanted: PlacementSnapshot, present: PlacementSnapshot, names: frozenset[str], *, overwrite: bool
) -> None:
    """Raises what `plan_import` raises."""
    broken = [
        invariant
        for invariant in broken_invariants(wanted)
        if not invariant.accepted and invariant.name not in _CREATED_BY_IMPORT
    ]
    if broken:
        sentences = [invariant.sentence for invariant in broken]
        raise errors.UsageError(
            f"The document is broken in {counted(len(broken), 'place')}, and no Placement accepts it: "
            f"{first_few(sentences, _SHOWN_MAX, '; ')} `plimsoll placement check` shows all, "
            "with remedies.",
            findings=[invariant.to_json() for invariant in broken],
        )
    providers = wanted.providers.values()
    used = {name for provider in providers for name in (*provider.traits, *provider.inventories)}
    unknown = sorted(name for name in used - names if not name.startswith(CUSTOM))
    if unknown:
        raise errors.ImportRefused(
            f"The target does not know {first_few(unknown, _SHOWN_MAX, '; ')}: its os-traits or "
            "os-resource-classes are older than the source's. Upgrade those there, or remove the names from "
            "the document.",
            conflicts=unknown,
        )
    holders = {provider.name: provider.uuid for provider in present.providers.values()}
    taken = [
        f"{provider.name} is {holders[provider.name]}, not {provider.uuid}"
        for provider in providers
        if holders.get(provider.name, provider.uuid) not in wanted.providers
    ]
    if taken:
        raise errors.ImportRefused(
            "The target has other providers with names of the document: "
            f"{first_few(taken, _SHOWN_MAX, '; ')}. Rename or delete those there, or rename the ones here.",
            conflicts=taken,
        )
    if not overwrite:
        _refuse_conflicts(wanted, present)


def _refuse_conflicts(wanted: PlacementSnapshot, present: PlacementSnapshot) -> None:
    # The full inventories that an interrupted import left behind are no conflict, and a provider of the
    # target that lacks contents is as such an import leaves it.
    used = present.usages()
    without_full = {
        uuid: replace(provider, inventories={})
        if same_inventories(provider.inventories, _full_inventories(used.get(uuid, {})))
        else provider
        for uuid, provider in present.providers.items()
    }
    conflicts = [
        difference
        for difference in differences(wanted, replace(present, providers=without_full))
        if not difference.missing
        and not (difference.aspect in ("traits", "aggregates", "inventories") and not difference.found)
    ]
    if conflicts:
        raise errors.ImportRefused(
            f"The target differs from the document in {counted(len(conflicts), 'place')}: "
            f"{first_few([each.line() for each in conflicts], _SHOWN_MAX, '; ')}. Nothing was written; "
            "--overwrite makes the target the same as the document there.",
            conflicts=[conflict.to_json() for conflict in conflicts],
        )


def _steps(wanted: PlacementSnapshot, present: PlacementSnapshot) -> Iterator[ImportStep]:
    """The steps for all consumers to write; a step has either typed or untyped consumers."""
    pending = []
    for uuid, consumer in wanted.consumers.items():
        existing = present.consumers.get(uuid)
        if existing is None:
            pending.append(replace(consumer, generation=None))
        elif not same_consumer(consumer, existing):
            pending.append(replace(consumer, generation=existing.generation))
    kinds = [
        [consumer for consumer in pending if (consumer.consumer_type == UNTYPED) is untyped]
        for untyped in (False, True)
    ]
    groups = [
        kind[start : start + WRITTEN_AT_ONCE]
        for kind in kinds
        for start in range(0, len(kind), WRITTEN_AT_ONCE)
    ]
    consumers = dict(present.consumers)
    for group in groups:
        before = [
            present.consumers[consumer.consumer]
            for consumer in group
            if consumer.consumer in present.consumers
        ]
        consumers |= {consumer.consumer: consumer for consumer in group}
        used = PlacementSnapshot(consumers=consumers).usages()
        touched = {uuid for consumer in (*group, *before) for uuid in consumer.allocations}
        yield ImportStep(
            {
                uuid: _full_inventories(used.get(uuid, {}))
                for uuid in sorted(touched & wanted.providers.keys())
            },
            tuple(group),
        )


def _full_inventories(used: Amounts) -> dict[str, Inventory]:
    """Inventories exactly as large as the amounts in use."""
    return {name: Inventory(amount) for name, amount in used.items()}


def _with_inventories(
    tree: ProviderTree, known: InventoriesByProvider, other: Mapping[str, Inventory] | None = None
) -> ProviderTree:
    """The tree with the inventories in `known`, and `other` for all other providers (None: unchanged)."""
    return ProviderTree(
        replace(
            provider,
            inventories=known.get(provider.uuid, provider.inventories if other is None else other),
        )
        for provider in tree
    )


def _without_names(planned: Plan) -> Iterator[Operation]:
    return (
        operation
        for operation in planned.operations
        if not isinstance(operation, CreateResourceClass | CreateTrait)
    )


# Removal


@dataclass(frozen=True, slots=True)
class RemovalPlan:
    """The writes of a removal: `consumers`, empty, with their generations, then `providers`, in order."""

    consumers: tuple[ConsumerAllocations, ...]
    providers: tuple[Provider, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.consumers and not self.providers

    def lines(self) -> Iterator[str]:
        """A sentence for each write."""
        for consumer in self.consumers:
            yield f"Delete the allocations of consumer {consumer.consumer}."
        for provider in self.providers:
            yield f"Delete the provider {provider.name} ({provider.uuid})."


def plan_removal(unwanted: PlacementSnapshot, present: PlacementSnapshot) -> RemovalPlan:
    """The writes that remove the records of `unwanted` that a service with the records `present` still has.

    Raises ImportRefused where the service changed since `unwanted` was exported: then the import does not
    have the changes, and to remove them would lose them.
    """
    still_there = PlacementSnapshot(
        {uuid: unwanted.providers[uuid] for uuid in unwanted.providers if uuid in present.providers},
        {uuid: unwanted.consumers[uuid] for uuid in unwanted.consumers if uuid in present.consumers},
    )
    changes = [difference.line() for difference in differences(still_there, present)]
    changes += [
        f"consumer {uuid}: has allocations there, and is not in the document"
        for uuid in foreign_consumers(unwanted, present)
    ]
    changes += [
        f"provider {provider.name} ({provider.uuid}): is a child there, and is not in the document"
        for provider in present.providers.values()
        if provider.parent in unwanted.providers and provider.uuid not in unwanted.providers
    ]
    if changes:
        raise errors.ImportRefused(
            f"The Placement differs from the document in {counted(len(changes), 'place')}: "
            f"{first_few(changes, _SHOWN_MAX, '; ')}. Nothing was removed; export and import again.",
            conflicts=changes,
        )
    tree = ProviderTree(present.providers.values())
    return RemovalPlan(
        tuple(
            replace(consumer, allocations={})
            for uuid, consumer in present.consumers.items()
            if uuid in unwanted.consumers
        ),
        tuple(provider for provider in tree.bottom_up() if provider.uuid in unwanted.providers),
    )


def apply_removal(client: PlacementClient, removal: RemovalPlan) -> None:
    """Write the plan. Raises what the client raises; the next removal does the rest."""
    for start in range(0, len(removal.consumers), REMOVED_AT_ONCE):
        client.write_allocations(*removal.consumers[start : start + REMOVED_AT_ONCE])
    for provider in removal.providers:
        client.delete_provider(provider.uuid)

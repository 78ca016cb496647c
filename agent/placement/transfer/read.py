"""Reads a snapshot of a Placement service: over its API, or from the state directory of an embedded core.

The cost of reading some trees does not depend on how many other trees the service has, or on who writes
there.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from agent.errors import PlacementConflict, PlacementError, PlacementUnavailable, StateError, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transfer.invariants import ServiceEvidence
from agent.placement.transfer.snapshot import CUSTOM, UNTYPED, PlacementSnapshot
from agent.placement.transport import body_member
from agent.shapes import Held, Usages
from agent.tree import Inventory, Provider

READERS = 8
ATTEMPTS_MAX = 3
NOT_FOUND = 404
_CONSUMER_TYPES = "1.38"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SnapshotClient(PlacementClient):
    """A Placement client that can also list all records."""

    def provider_roots(self, in_tree: str | None = None) -> tuple[list[Provider], dict[str, str]]:
        """All providers, or those of the tree that contains `in_tree`, without contents, and {uuid: root}."""
        query = "" if in_tree is None else f"?{urlencode({'in_tree': in_tree})}"
        records = self._list(f"/resource_providers{query}", "resource_providers")
        providers = [
            Provider(
                record["uuid"],
                record["name"],
                record["parent_provider_uuid"],
                generation=record["generation"],
            )
            for record in records
        ]
        return providers, {record["uuid"]: record["root_provider_uuid"] for record in records}

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
        return self.speaks(_CONSUMER_TYPES)


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
    providers = [client.find_provider(name=name) or _find_by_uuid(client, name) for name in names]
    uuids = [provider.uuid for provider in providers if provider is not None]
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


def _find_by_uuid(client: SnapshotClient, text: str) -> Provider | None:
    try:
        return client.find_provider(uuid=str(UUID(text)))
    except ValueError:
        return None


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
    for _ in range(ATTEMPTS_MAX):
        try:
            listed, roots = list_providers()
        except PlacementError as error:
            if error.status == NOT_FOUND:  # no list of a Placement is missing
                raise PlacementError(
                    "No Placement answers there: the list of its resource providers was asked for, and the "
                    "answer has status 404. Check the URL, its path, too: many end in /placement.",
                    status=NOT_FOUND,
                ) from error
            raise
        try:
            known = {
                provider.uuid: provider for provider in _map_parallel(_provider_reader(client, known), listed)
            }
            held, usages = _read_uses(client, listed, with_usages=with_usages)
        except PlacementError as error:
            if error.status != NOT_FOUND or isinstance(error, PlacementUnavailable):
                raise
            continue  # another client deleted a provider meanwhile
        uuids = sorted({*consumers, *(consumer for holders in held.values() for consumer in holders)})
        read = [
            consumer for consumer in _map_parallel(_consumer_reader(client), uuids) if consumer.allocations
        ]
        if _generations(list_providers()[0]) == _generations(known.values()):
            traits, classes = client.trait_names(), client.resource_class_names()
            snapshot = PlacementSnapshot.of(
                known.values(), read, _custom_names(traits), _custom_names(classes)
            )
            return snapshot, ServiceEvidence(roots, usages, held, frozenset((*traits, *classes)))
    raise PlacementConflict(
        f"Other clients wrote to Placement during each of {ATTEMPTS_MAX} attempts to read it: stop the "
        "agents and schedulers that write to these providers, or try again at a quieter time."
    )


def _read_uses(
    client: SnapshotClient, providers: Iterable[Provider], *, with_usages: bool
) -> tuple[Held, Usages]:
    """The allocations and, if wanted, the usages of each provider."""
    uuids = [provider.uuid for provider in providers]
    held = _map_parallel(lambda uuid: (uuid, client.provider_allocations(uuid).consumers), uuids)
    usages = _map_parallel(lambda uuid: (uuid, client.provider_usages(uuid)), uuids if with_usages else [])
    return dict(held), dict(usages)


def read_state_dir(state_dir: Path) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """All records, from the database of an embedded core that does not run.

    Raises UsageError where there is no such database, StateError where it cannot be used.
    """
    from agent.durable.errors import DatabaseError
    from agent.placement.embedded.store import FILE_NAME, Store

    if not (state_dir / FILE_NAME).is_file():
        raise UsageError(f"There is no placement database in {state_dir}: {FILE_NAME} is missing there.")
    try:
        store = Store(state_dir)
        try:
            damage = [row[0] for row in store.file.read("PRAGMA integrity_check") if row[0] != "ok"]
            with store.reading() as model:
                snapshot = _snapshot_of_model(model)
                roots = {uuid: provider.root_uuid for uuid, provider in model.providers.items()}
                names = frozenset((*model.traits, *model.resource_classes))
        finally:
            store.close()
    except DatabaseError as error:
        raise StateError(str(error), path=str(error.path)) from error
    if damage:
        raise StateError(
            f"{state_dir / FILE_NAME} is damaged ({damage[0]}): replace it by a backup.", findings=damage
        )
    return snapshot, ServiceEvidence(roots, names=names)


def _generations(providers: Iterable[Provider]) -> dict[str, int | None]:
    return {provider.uuid: provider.generation for provider in providers}


def _provider_reader(client: SnapshotClient, known: dict[str, Provider]) -> Callable[[Provider], Provider]:
    """A function that reads a listed provider, unless `known` has it with the same generation."""

    def read(listed: Provider) -> Provider:
        before = known.get(listed.uuid)
        if before is not None and before.generation == listed.generation:
            return replace(before, name=listed.name, parent=listed.parent)
        return client.read_provider(listed)

    return read


def _consumer_reader(client: SnapshotClient) -> Callable[[str], ConsumerAllocations]:
    typed = client.has_consumer_types()

    def read(uuid: str) -> ConsumerAllocations:
        consumer = client.allocations_of(uuid)
        return consumer if typed else replace(consumer, consumer_type=UNTYPED)

    return read


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
                {
                    name: Inventory(
                        inventory.total,
                        inventory.reserved,
                        inventory.min_unit,
                        inventory.max_unit,
                        inventory.step_size,
                        inventory.allocation_ratio,
                    )
                    for name, inventory in record.inventories.items()
                },
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

"""Reads what a placement service holds, all or a part: over its API, or from an embedded core's directory.

What is read of a part is independent of how much else the service holds, and of who writes there.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from agent.errors import PlacementConflict, PlacementError, StateError, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.replies import body_member
from agent.placement.transfer.invariants import ServiceEvidence
from agent.placement.transfer.snapshot import CUSTOM, UNTYPED, PlacementSnapshot
from agent.tree import Inventory, Provider

READERS = 8
ROUNDS_MAX = 3
NOT_FOUND = 404
_CONSUMER_TYPES = "1.38"

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class SnapshotClient(PlacementClient):
    """A placement client that can also list everything."""

    def provider_roots(self, in_tree: str | None = None) -> tuple[list[Provider], dict[str, str]]:
        """All providers, or those of one's tree, without their contents, and {provider: root}."""
        query = "" if in_tree is None else f"?{urlencode({'in_tree': in_tree})}"
        said = self._list(f"/resource_providers{query}", "resource_providers")
        providers = [
            Provider(each["uuid"], each["name"], each["parent_provider_uuid"], generation=each["generation"])
            for each in said
        ]
        return providers, {each["uuid"]: each["root_provider_uuid"] for each in said}

    def trait_names(self) -> list[str]:
        return self._list("/traits", "traits")

    def resource_class_names(self) -> list[str]:
        return [each["name"] for each in self._list("/resource_classes", "resource_classes")]

    def _list(self, path: str, key: str) -> list[Any]:
        asked = f"list its {key.replace('_', ' ')}"
        return list(body_member(self._call("GET", path, asked), asked, key, kind=list))

    def knows_types(self) -> bool:
        """Whether it tells consumers' types apart, which is so from microversion 1.38 on."""
        return self.speaks(_CONSUMER_TYPES)


def read_service(
    client: SnapshotClient, *, with_usages: bool = False
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """Everything, over the API: four requests a provider (five `with_usages`) and one a consumer.

    Providers that were written to meanwhile are read again, ROUNDS_MAX times at most; then PlacementConflict.
    Placement does not tell every release, so nobody should write while this reads.
    """
    return _read(client, client.provider_roots, with_usages=with_usages)


def read_trees(client: SnapshotClient, named: Iterable[str]) -> PlacementSnapshot:
    """The trees of the providers with those names or uuids, and who holds something there, over the API.

    Of other providers that those hold something on, the trees come without contents. Names that are not there
    are left out. Raises as `read_service` does.
    """
    found = [client.find_provider(name=each) or _by_uuid(client, each) for each in named]
    uuids = [each.uuid for each in found if each is not None]
    content, _ = _read(client, lambda: _trees(client, uuids))
    elsewhere = {uuid for each in content.consumers.values() for uuid in each.allocations}
    return _with_bare(content, _trees(client, sorted(elsewhere - content.providers.keys()))[0])


def read_counterpart(
    client: SnapshotClient, wanted: PlacementSnapshot
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """What the service holds in the place of `wanted`: the trees of its providers, whoever holds something
    there, its consumers, and, without contents, the trees of others that have names of its providers.

    Three requests for a provider that is not there, four or five for one that is, and one for a consumer.
    Raises as `read_service` does.
    """
    roots = [uuid for uuid, each in wanted.providers.items() if each.parent not in wanted.providers]
    content, evidence = _read(
        client, lambda: _trees(client, roots, wanted.providers), consumers=wanted.consumers.keys()
    )
    missing = [each.name for each in wanted.providers.values() if each.uuid not in content.providers]
    named = [each.uuid for each in _each(lambda name: client.find_provider(name=name), missing) if each]
    return _with_bare(content, _trees(client, named)[0]), evidence


def _by_uuid(client: SnapshotClient, named: str) -> Provider | None:
    try:
        return client.find_provider(uuid=str(UUID(named)))
    except ValueError:
        return None


def _trees(client: SnapshotClient, *waves: Iterable[str]) -> tuple[list[Provider], dict[str, str]]:
    """The providers of the trees that these are in, each once, and {provider: root}.

    Those of a wave are asked for at once, and none that an earlier wave brought along.
    """
    providers: dict[str, Provider] = {}
    roots: dict[str, str] = {}
    for wave in waves:
        unknown = [uuid for uuid in wave if uuid not in providers]
        for listed, rooted in _each(lambda uuid: client.provider_roots(in_tree=uuid), unknown):
            providers |= {each.uuid: each for each in listed}
            roots |= rooted
    return list(providers.values()), roots


def _with_bare(content: PlacementSnapshot, bare: Iterable[Provider]) -> PlacementSnapshot:
    others = {each.uuid: each for each in bare}
    return replace(content, providers={**others, **content.providers})


def _read(
    client: SnapshotClient,
    listing: Callable[[], tuple[list[Provider], dict[str, str]]],
    *,
    consumers: Iterable[str] = (),
    with_usages: bool = False,
) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """The providers that are listed, who holds something on them, and these consumers."""
    known: dict[str, Provider] = {}
    for _ in range(ROUNDS_MAX):
        try:
            listed, roots = listing()
            known = {each.uuid: each for each in _each(_refresher(client, known), listed)}
            held = dict(
                _each(lambda each: (each.uuid, client.provider_allocations(each.uuid).consumers), listed)
            )
            usages = dict(
                _each(
                    lambda each: (each.uuid, client.provider_usages(each.uuid)), listed if with_usages else []
                )
            )
        except PlacementError as error:
            if error.status != NOT_FOUND:
                raise
            continue  # a provider was deleted meanwhile
        uuids = sorted({*consumers, *(consumer for some in held.values() for consumer in some)})
        found = [each for each in _each(_consumer_reader(client), uuids) if each.allocations]
        if _generations(listing()[0]) == _generations(known.values()):
            traits, classes = client.trait_names(), client.resource_class_names()
            content = PlacementSnapshot.of(known.values(), found, _custom(traits), _custom(classes))
            return content, ServiceEvidence(roots, usages, held, frozenset((*traits, *classes)))
    raise PlacementConflict(
        f"Placement was written to while it was being read, {ROUNDS_MAX} times: stop what writes to it "
        "(agents, schedulers), or try again at a quieter time."
    )


def read_state_dir(state_dir: Path) -> tuple[PlacementSnapshot, ServiceEvidence]:
    """Everything, from the database of an embedded core that does not run.

    Raises UsageError where there is no such database, StateError where it cannot be used.
    """
    from agent.durable.errors import DatabaseError, DatabaseLocked
    from agent.placement.embedded.store import Store
    from agent.placement.embedded.tables import FILE_NAME

    if not (state_dir / FILE_NAME).is_file():
        raise UsageError(f"There is no placement database in {state_dir}: {FILE_NAME} is missing there.")
    try:
        store = Store(state_dir)
        try:
            damage = [row[0] for row in store.file.read("PRAGMA integrity_check") if row[0] != "ok"]
            with store.reading() as model:
                content = _from_model(model)
                roots = {uuid: each.root_uuid for uuid, each in model.providers.items()}
                names = frozenset((*model.traits, *model.resource_classes))
        finally:
            store.close()
    except DatabaseLocked as error:
        raise StateError(
            f"{error} A running agent can be asked at its placement socket instead: --url unix:PATH.",
            path=str(error.path),
        ) from error
    except DatabaseError as error:
        raise StateError(str(error), path=str(error.path)) from error
    if damage:
        raise StateError(
            f"{state_dir / FILE_NAME} is damaged ({damage[0]}): put a backup in its place.", findings=damage
        )
    return content, ServiceEvidence(roots, names=names)


def _generations(providers: Iterable[Provider]) -> dict[str, int | None]:
    return {provider.uuid: provider.generation for provider in providers}


def _refresher(client: SnapshotClient, known: dict[str, Provider]) -> Callable[[Provider], Provider]:
    def refreshed(listed: Provider) -> Provider:
        before = known.get(listed.uuid)
        if before is not None and before.generation == listed.generation:
            return replace(before, name=listed.name, parent=listed.parent)
        return client.read_provider(listed)

    return refreshed


def _consumer_reader(client: SnapshotClient) -> Callable[[str], ConsumerAllocations]:
    typed = client.knows_types()

    def consumer(uuid: str) -> ConsumerAllocations:
        found = client.allocations_of(uuid)
        return found if typed else replace(found, consumer_type=UNTYPED)

    return consumer


def _each(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(work, items))


def _from_model(model: Any) -> PlacementSnapshot:
    return PlacementSnapshot.of(
        [
            Provider(
                each.uuid,
                each.name,
                each.parent_uuid,
                {name: _inventory(inventory) for name, inventory in each.inventories.items()},
                each.traits,
                each.aggregates,
                each.generation,
            )
            for each in model.providers.values()
        ],
        [
            ConsumerAllocations(
                each.uuid,
                each.allocations,
                each.generation,
                each.project_id,
                each.user_id,
                each.consumer_type or UNTYPED,
            )
            for each in model.consumers.values()
        ],
        _custom(model.traits),
        _custom(model.resource_classes),
    )


def _custom(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(CUSTOM)]


def _inventory(said: Any) -> Inventory:
    return Inventory(
        said.total, said.reserved, said.min_unit, said.max_unit, said.step_size, said.allocation_ratio
    )

"""What the agent remembers of its Placement: its name, its tree and allocations, and the sharing providers.

The name says which Placement has this host's claims, so that a changed [placement] section loses none of
them. It is kept in the state directory, beside the host's uuid, and compared at each start.

A file has Placement's tree and its allocations, so that a restart need not read all of Placement. It may be
lost, and by itself it proves nothing: Placement raises a provider's generation with each write of its
inventories, traits, aggregates or allocations, and the agent reads again what has another generation by
then. The file is an export document (docs/placement-export.md) with the name of its Placement.

The two caches in memory spare the passes after the first what no other client has changed.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from agent import log
from agent.claims.claim import Claim, ClaimState
from agent.config.settings import PlacementSettings
from agent.durable.files import write_atomically
from agent.errors import ApplyError, StateError, UsageError, counted, first_few
from agent.json_checks import read_object
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.snapshot import PlacementSnapshot, from_document, to_document
from agent.reconcile.one_writer import is_writer_mark
from agent.shapes import Held, Holders, beyond, turned
from agent.tree import Provider, ProviderTree

LOG = log.get(__name__)

CACHE_FILE = "placement_seen.json"
HOME_FILE = "placement_home"
GO_ON = "adopted, from "
"""Before the name of a home: an operator has adopted the host since, so it may have lost what it held."""
NAMED_MAX = 3
TEXT_CHARS_MAX = 1000


def home_name(settings: PlacementSettings) -> str:
    """The name of the Placement that the settings lead to.

    Files on disk have it (`HOME_FILE`, and the tree cache), so the words must stay the same.
    """
    if settings.kind == "embedded":
        return "the embedded placement"
    where = (
        settings.endpoint_override or f"that of {settings.auth_url}, region {settings.region_name or 'any'}"
    )
    return f"the remote placement {where}"


def check_home(
    state_path: Path, client: PlacementClient, home: str, root: str, claims: Iterable[Claim]
) -> bool:
    """Check that the Placement named `home` has all of the host's claims, and remember it as the host's.

    If the host's claims were there before, one request shows whether it still knows them; `root` is the uuid
    of the host's root provider. Returns whether the operator said to go on, even if it lost claims. Raises
    ApplyError where claims are missing, StateError and PlacementError where the agent cannot find out; then
    the agent must write nothing.
    """
    before = _read_home(state_path / HOME_FILE)
    if before is not None and before.startswith(GO_ON):
        before = before.removeprefix(GO_ON)
        if before == home:
            _write_home(state_path / HOME_FILE, home)
            return True
    granted = [claim for claim in claims if claim.state is ClaimState.CLAIMED]
    if before == home:
        _check_known(client, home, root, granted)
        return False
    missing = [
        claim
        for claim in (granted if before is not None else ())
        if beyond(claim.allocations, client.allocations_of(claim.consumer).allocations)
    ]
    if missing:
        raise ApplyError(
            f"This host comes from {before}, and {home} does not hold {len(missing)} of its "
            f"{counted(len(granted), 'claim')} ({_named(missing)}); nothing was written. Stop the agent "
            f"and bring them over with "
            "`plimsoll placement export` and `import`, point [placement] back, or release them.",
            consumers=[claim.consumer for claim in missing],
            before=before,
            here=home,
        )
    _write_home(state_path / HOME_FILE, home)
    return False


def go_on_without(state_path: Path) -> None:
    """Let the next start go on with the same Placement, even if that has lost all. Raises StateError."""
    before = _read_home(state_path / HOME_FILE)
    if before is not None and not before.startswith(GO_ON):
        _write_home(state_path / HOME_FILE, f"{GO_ON}{before}")


def _check_known(client: PlacementClient, home: str, root: str, granted: Sequence[Claim]) -> None:
    """A provider with allocations cannot be deleted, so one that is gone went with the whole database.

    Unless a reshape that this agent does not know of moved them: then the host's root is still there, or
    their consumers still hold something.
    """
    in_use = next((provider for claim in granted for provider in claim.allocations), None)
    if in_use is None or any(client.find_provider(uuid=each) is not None for each in (in_use, root)):
        return
    if not any(client.allocations_of(claim.consumer).allocations for claim in granted):
        raise ApplyError(
            f"This host has {counted(len(granted), 'claim')} ({_named(granted)}), but {home} no longer "
            "knows its providers: its database was lost or replaced. Nothing was written. Restore the "
            "database from a backup. Without one, stop the agent, run `plimsoll adopt UUID` with the uuid of "
            "this host, and start it: it reports the host anew, and `plimsoll audit --heal` writes the "
            "allocations of its claims again.",
            consumers=[claim.consumer for claim in granted],
            here=home,
        )


def _named(claims: Sequence[Claim]) -> str:
    return first_few([claim.request.name or claim.consumer for claim in claims], NAMED_MAX)


def _read_home(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TEXT_CHARS_MAX).strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{path} cannot be read: {error}.", path=str(path)) from error


def _write_home(path: Path, text: str) -> None:
    try:
        write_atomically(path, f"{text}\n")
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}.", path=str(path)) from error


class TreeCache:
    """The file in `state_path`; one of another Placement than `home`, in words, is ignored."""

    def __init__(self, state_path: Path, home: str) -> None:
        self._file = state_path / CACHE_FILE
        self._home = home
        self._text = ""
        self._failure_logged = False

    def load(self) -> tuple[ProviderTree, Held]:
        """The tree with its generations, and the allocations as of those; both empty where unknown."""
        try:
            text = self._file.read_text(encoding="utf-8")
            document = read_object(json.loads(text), CACHE_FILE, ("place", "content"))
            snapshot = from_document(document.get("content"))
            if document.get("place") != self._home:
                return ProviderTree(), {}
            tree = ProviderTree(snapshot.providers.values())
        except FileNotFoundError:
            return ProviderTree(), {}
        except (OSError, ValueError, RecursionError, UsageError) as error:
            LOG.warning(
                "%s cannot be used (%s): the agent reads all of Placement, as at a first start.",
                self._file,
                error,
            )
            return ProviderTree(), {}
        self._text = text
        return tree, turned({uuid: each.allocations for uuid, each in snapshot.consumers.items()})

    def save(self, tree: ProviderTree, held: Held) -> None:
        """Write the file if its content has changed. A failure is logged once; it only costs reads."""
        consumers = (ConsumerAllocations(consumer, has) for consumer, has in turned(held).items())
        snapshot = PlacementSnapshot.of(tree, consumers)
        text = json.dumps({"place": self._home, "content": to_document(snapshot)}) + "\n"
        if text == self._text:
            return
        try:
            write_atomically(self._file, text)
        except OSError as error:
            if not self._failure_logged:
                LOG.warning(
                    "%s cannot be written (%s): the next start reads more from Placement.", self._file, error
                )
            self._failure_logged = True
        else:
            self._text, self._failure_logged = text, False


class FreshAllocations(NamedTuple):
    """`held` on the providers that were read; on the providers in `kept` nothing has changed."""

    held: Held
    kept: frozenset[str]


class AllocationCache:
    """Knows on which providers the allocations may have changed since they were entered into the book."""

    def __init__(self, client: PlacementClient, tree: ProviderTree, held: Held) -> None:
        """`held` has the allocations on `tree` as of its providers' generations."""
        self._client = client
        self._known = {provider.uuid: provider.generation for provider in tree}
        self._saved = {provider.uuid: held.get(provider.uuid, {}) for provider in tree}

    def follow_writes(self, before: ProviderTree, after: ProviderTree, foreign: set[str]) -> None:
        """Take over the generations that the agent's own writes made: those change no allocation.

        `foreign` are the providers that another client has written meanwhile.
        """
        for provider in after:
            if provider.uuid in foreign:
                continue
            former = before.get(provider.uuid)
            is_new = former is None or not former.inventories
            if is_new or (former and self._known.get(provider.uuid, -1) == former.generation):
                self._known[provider.uuid] = provider.generation
            if is_new:
                self._saved.pop(provider.uuid, None)

    def read(self, tree: ProviderTree, doubted: Collection[str]) -> FreshAllocations:
        """Read the allocations on the providers of `tree` that may have changed, `doubted` ones in any case.

        The caller enters them into the book, or calls `forget`. Raises PlacementError.
        """
        held: dict[str, Holders] = {}
        kept = set()
        for provider in (provider for provider in tree if provider.inventories):
            uuid = provider.uuid
            # A release by another client need not raise the generation.
            if uuid in doubted or self._known.get(uuid, -1) != provider.generation:
                held[uuid] = self._client.provider_allocations(uuid).consumers
            elif uuid in self._saved:
                held[uuid] = self._saved[uuid]
            else:
                kept.add(uuid)
        self._known = {provider.uuid: provider.generation for provider in tree if provider.inventories}
        self._saved = {}
        return FreshAllocations({uuid: holders for uuid, holders in held.items() if holders}, frozenset(kept))

    @property
    def is_saved(self) -> bool:
        """Whether what is known is of an earlier run of the agent, and nothing has been read since."""
        return bool(self._saved)

    def used_otherwise(self, root: str, tree: ProviderTree, held: Held) -> frozenset[str]:
        """The providers of this host's tree on which not as much is in use as `held` says, in one request.

        What is known of an earlier run counts instead, as long as nothing was read. Another client may have
        deleted an allocation, or taken a provider out of one: that raises no generation there. All providers,
        where Placement cannot tell that at once. Raises PlacementError.
        """
        in_use = {provider.uuid: Counter[str]() for provider in tree if provider.inventories}
        held = self._saved or held
        for uuid in in_use.keys() & held.keys():
            for amounts in held[uuid].values():
                in_use[uuid].update(amounts)
        if not any(in_use.values()):
            return frozenset()
        # The class with the most room on one provider, and the least of it that a consumer can have.
        room: dict[tuple[str, int], int] = {}
        for provider in tree:
            for name, inventory in provider.inventories.items():
                least = -(-inventory.min_unit // inventory.step_size) * inventory.step_size
                left = inventory.capacity - in_use[provider.uuid].get(name, 0)
                if least <= inventory.max_unit:
                    room[name, least] = max(room.get((name, least), 0), left // least)
        asked = max(room, key=room.__getitem__, default=None)
        used = self._client.tree_usages(root, *asked) if asked is not None and room[asked] > 0 else None
        if used is None:
            return frozenset(in_use)
        return frozenset(uuid for uuid, amounts in in_use.items() if amounts != Counter(used.get(uuid, {})))

    def forget(self) -> None:
        """Read all anew the next time: what was read last was not entered."""
        self._known, self._saved = {}, {}


class SharingProvidersCache:
    """The providers that share inventory with the host through an aggregate, as they were last read."""

    def __init__(self, client: PlacementClient, root_uuid: str = "") -> None:
        self._client = client
        self._root_uuid = root_uuid
        self._aggregates: frozenset[str] = frozenset()
        self._known: tuple[Provider, ...] = ()

    def add_to(self, tree: ProviderTree, *, reread: bool) -> ProviderTree:
        """The host's tree with the sharing providers as further roots.

        They are read at first, with `reread`, and when the aggregates of the host's providers have changed; a
        host in no aggregate costs no request. Raises PlacementError.
        """
        aggregates = frozenset(
            aggregate
            for provider in tree
            for aggregate in provider.aggregates
            if provider.uuid != self._root_uuid or not is_writer_mark(aggregate, self._root_uuid)
        )
        if reread or aggregates != self._aggregates:
            providers = self._client.sharing_providers(aggregates, self._known)
            self._known = tuple(
                replace(provider, parent=None) for provider in providers if provider.uuid not in tree
            )
            self._aggregates = aggregates
        return self.around(tree)

    def around(self, tree: ProviderTree) -> ProviderTree:
        """The tree with the sharing providers as they are known; no request is made."""
        return ProviderTree((*tree, *(provider for provider in self._known if provider.uuid not in tree)))

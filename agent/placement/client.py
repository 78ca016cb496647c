"""The Placement client: each method is one operation of the Placement API, with typed arguments and results.

Source: https://docs.openstack.org/api-ref/placement/. Each method that sends a request raises:

    PlacementUnavailable  no answer of Placement itself, a 5xx or a 429: the request can be repeated later;
                          `details["retry_after"]` has the seconds, if Placement sent a Retry-After;
                          `details["busy"]` is true if a service answered, or did not answer in time
    PlacementConflict     409 placement.concurrent_update: another client wrote in between, read again
    PlacementFull         409 to a write of allocations: the resources are not free
    PlacementError        all else; `status` and `placement_code` are Placement's own
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from agent import log
from agent.codec import decode, encode
from agent.errors import PlacementConflict, PlacementError, PlacementUnavailable, UsageError
from agent.placement.host_note import HostNote, HostReport
from agent.placement.transport import (
    RISK_HEADER,
    Reply,
    Transport,
    WriteDone,
    WriteOutcome,
    WriteRefused,
    WriteUnknown,
    body_member,
    error_of_reply,
    generation_of,
    inventory_from_json,
    is_certain,
    outcome_of_reply,
)
from agent.shapes import Allocations, Amounts, Holders
from agent.tree import Inventory, Provider, ProviderTree

LOG = log.get(__name__)

HOLD_MAX_S = 600.0
"""No wait is longer: the greatest [placement] timeout."""
TELL_AFTER_S = 1.0
ANYWHERE = ""
"""Stands for the providers of a write that names none: a release."""


class WriteGate:
    """Holds the agent's own writes of allocations back while a write of inventories is out.

    A provider's generation guards both, and each write raises it. So a host on which claims are made all the
    time would meet conflicts with itself. A hold lasts as long as the requests within it, each of which has a
    deadline of its own. A write that waits says so in the log, and its consumer's history says what it waited
    for.

    Any thread may call. A writer of allocations passes; a writer of inventories holds the others back.
    `passed` is how many writes of allocations have ended on each provider.
    """

    def __init__(self, hold_max_s: float = HOLD_MAX_S) -> None:
        self._hold_max_s = hold_max_s
        self._condition = threading.Condition()
        self._held: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._passing: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()

    @contextmanager
    def passing(self, providers: Collection[str], what: str = "a write") -> Iterator[str]:
        """Run a block that writes allocations on these providers, after the hold on them has ended.

        Yields what the block, which `what` names for the log, has waited for and how long; "" for a short
        wait.
        """
        waited = ""
        with self._condition:
            if self._is_held(providers):
                began, why = time.monotonic(), "; ".join(self._reasons)
                short = min(TELL_AFTER_S, self._hold_max_s)
                if not self._condition.wait_for(lambda: not self._is_held(providers), short):
                    LOG.info("%s waits: %s.", what, why)
                    self._condition.wait_for(lambda: not self._is_held(providers), self._hold_max_s - short)
                    waited = f"waited {time.monotonic() - began:.1f} s: {why}"
            self._passing.update(providers)
        try:
            yield waited
        finally:
            with self._condition:
                self.passed.update(providers)
                for uuid in providers:
                    self._passing[uuid] -= 1
                self._condition.notify_all()

    def _is_held(self, providers: Collection[str]) -> bool:
        return bool(self._held) and (ANYWHERE in providers or not self._held.keys().isdisjoint(providers))

    @contextmanager
    def held(
        self, providers: Collection[str], why: str = "Placement is sent the inventories of the same provider"
    ) -> Iterator[None]:
        """Run a block that writes inventories of these providers, once the writes under way on them end."""
        names = frozenset(providers)
        with self._condition:
            self._held.update(names)
            self._reasons.append(why)
        try:
            with self._condition:
                self._condition.wait_for(
                    lambda: not any(self._passing[uuid] for uuid in (*names, ANYWHERE)), self._hold_max_s
                )
            yield
        finally:
            with self._condition:
                self._held -= Counter(names)  # without zeros, so that nothing held is an empty counter
                self._reasons.remove(why)
                self._condition.notify_all()


DEFAULT_MICROVERSION = "1.39"
LEAST_MICROVERSION = "1.30"
SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
AGGREGATES_MAX = 100
SEQUENTIAL_MAX = 16
"""So many consumers are read one after the other; more are read by READERS threads."""
READERS = 8
READS_MAX = 3
T = TypeVar("T")
CONSUMER_TYPES = "1.38"
_REPARENTING = "1.37"
_CANDIDATES_IN_TREE = "1.31"
BARRED_TYPE = "BARRED"
_NO_ROUTE = (404, 405)
_UNKNOWN_NAME = "No such "
"""So begins what Placement says of a class or a trait that does not exist."""
UNTYPED = "unknown"
"""The type that Placement shows for a consumer that was last written before microversion 1.38."""


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """The allocations of one consumer, as read or as to be written.

    `generation` is Placement's, None for a consumer that does not exist. Writing empty `allocations` deletes
    the consumer. Below microversion 1.38 the type is neither sent nor read.
    """

    consumer: str
    allocations: Allocations
    generation: int | None = None
    project_id: str = "plimsoll"
    user_id: str = "plimsoll"
    consumer_type: str = "INSTANCE"


class ProviderAllocations(NamedTuple):
    """The allocations on one provider, by consumer, and the provider's generation."""

    generation: int
    consumers: Holders


class AllocationObserver:
    """Learns what a client reads and writes of consumers' allocations; this one ignores it."""

    def read(self, consumer: str, ask: Callable[[], ConsumerAllocations]) -> ConsumerAllocations:
        """The result of `ask`, which reads the consumer's allocations from Placement."""
        return ask()

    def wrote(self, writes: Iterable[ConsumerAllocations]) -> None:
        """Placement has just executed these writes."""

    def waited(self, consumers: Iterable[str], why: str) -> None:
        """A write for these consumers has waited for another request; `why` says how long and for which."""


class PlacementClient:
    """Sends the agent's requests to Placement, each with `microversion`.

    `observer` learns of the consumers' allocations that pass through this client.

    If the service does not support that one, the client reads the service's range and changes `microversion`
    to the highest that both support. Below LEAST_MICROVERSION it raises PlacementError.
    """

    def __init__(self, transport: Transport, *, microversion: str = DEFAULT_MICROVERSION) -> None:
        self._transport = transport
        self.microversion = microversion
        self.gate = WriteGate()
        """Holds this client's writes of allocations back while inventories are written."""
        self.observer = AllocationObserver()
        self._has_notes = True
        self._has_host_candidates = True

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    @property
    def certain(self) -> bool:
        """Whether no request is executed after its answer, or after the end of this process."""
        return is_certain(self._transport)

    def versions(self) -> tuple[str, str]:
        """The lowest and the highest microversion of the service."""
        action = "list its versions"
        reply = self._transport.request("GET", "/", microversion="1.0")
        if reply.status == 404 or (reply.status == 200 and not isinstance(reply.body, dict)):
            raise PlacementError(
                f"There is no Placement at that address: GET / is answered with status {reply.status}, "
                "without a list of versions. Check the URL, its path, too.",
                status=reply.status,
            )
        if reply.status != 200:
            raise error_of_reply(reply, action, full=False)
        for version in body_member(reply, action, "versions", kind=list):
            if "max_version" in version:
                return str(version["min_version"]), str(version["max_version"])
        raise PlacementError("Placement shows no microversions: check that the address is Placement's.")

    # Providers

    def read_tree(self, root: str, known: ProviderTree | None = None) -> ProviderTree:
        """The tree that contains the provider with uuid `root`; empty if Placement does not have it.

        One request, and three for each provider whose generation differs from that in `known`.
        """
        return self._read_listed(self._list_tree(root), known)

    def _read_listed(self, listed: Iterable[Provider], known: ProviderTree | None) -> ProviderTree:
        old = known or ProviderTree()
        return ProviderTree(self._with_contents(provider, old.get(provider.uuid)) for provider in listed)

    def read_tree_with(
        self, root: str, known: ProviderTree | None, part: Callable[[str], T]
    ) -> tuple[ProviderTree, dict[str, T]]:
        """As `read_tree`, and {uuid of a provider with inventories: `part` of it}.

        A provider may be deleted after it was listed, by a reshape of this agent, too: then all is read anew,
        at most READS_MAX times. Raises PlacementConflict.
        """

        def read(listed: Iterable[Provider]) -> tuple[ProviderTree, dict[str, T]]:
            tree = self._read_listed(listed, known)
            return tree, {provider.uuid: part(provider.uuid) for provider in tree if provider.inventories}

        for _ in range(READS_MAX - 1):
            listed = self._list_tree(root)
            with suppress(PlacementConflict):
                return read(listed)
        return read(self._list_tree(root))

    def generations(self, root: str) -> Mapping[str, int]:
        """{provider uuid: generation} of the tree that contains `root`, in one request."""
        return {provider.uuid: provider.generation or 0 for provider in self._list_tree(root)}

    def sharing_providers(
        self, aggregates: Iterable[str], known: Iterable[Provider] = ()
    ) -> tuple[Provider, ...]:
        """The sharing providers in these aggregates, of all trees, ordered by name.

        One request for each AGGREGATES_MAX aggregates, and three for each provider whose generation differs
        from that in `known`.
        """
        names, old = sorted(aggregates), {provider.uuid: provider for provider in known}
        sharing: dict[str, Provider] = {}
        for first in range(0, len(names), AGGREGATES_MAX):
            members = f"in:{','.join(names[first : first + AGGREGATES_MAX])}"
            query = urlencode({"member_of": members, "required": SHARING_TRAIT})
            listed = self._list_providers(query, "list the providers that share with this host")
            sharing |= {provider.uuid: provider for provider in listed}
        ordered = sorted(sharing.values(), key=lambda provider: provider.name)
        return tuple(self._with_contents(provider, old.get(provider.uuid)) for provider in ordered)

    def find_provider(self, *, name: str | None = None, uuid: str | None = None) -> Provider | None:
        """The provider with that name or uuid, without its contents (see `read_provider`), or None."""
        query = urlencode(
            {key: value for key, value in (("name", name), ("uuid", uuid)) if value is not None}
        )
        action = f"find the provider {name or uuid}" if name or uuid else "list the providers"
        providers = self._list_providers(query, action)
        return providers[0] if providers else None

    def read_provider(self, provider: Provider) -> Provider:
        """The provider with its current inventories, traits, aggregates and generation.

        Three requests. The generation is the lowest of the three replies, so that the next write notices a
        change in between. Raises PlacementConflict if the provider no longer exists.
        """
        base = _path("resource_providers", provider.uuid)
        action = f"show the contents of {_name_and_uuid(provider)}"
        parts = ("inventories", "traits", "aggregates")
        inventories, traits, aggregates = (self._get_part(f"{base}/{part}", action) for part in parts)
        return replace(
            provider,
            inventories=_inventories(inventories, action),
            traits=frozenset(body_member(traits, action, "traits", kind=list)),
            aggregates=frozenset(body_member(aggregates, action, "aggregates", kind=list)),
            generation=min(generation_of(reply, action) for reply in (inventories, traits, aggregates)),
        )

    def create_provider(self, provider: Provider) -> int:
        """Create the provider without contents; returns its generation.

        Raises PlacementError with DUPLICATE_NAME where a provider has the name or the uuid.
        """
        body: dict[str, Any] = {"uuid": provider.uuid, "name": provider.name}
        if provider.parent is not None:
            body["parent_provider_uuid"] = provider.parent
        action = f"create the provider {_name_and_uuid(provider)}"
        reply = self._call("POST", "/resource_providers", action, body)
        return int(body_member(reply, action, "generation", kind=int))

    def rename_provider(self, uuid: str, name: str) -> int:
        """Rename the provider; returns its generation.

        Raises PlacementError with DUPLICATE_NAME where another provider has the name.
        """
        return self._put_provider(uuid, {"name": name}, f"rename the provider {uuid} to {name}")

    def reparent_provider(self, uuid: str, name: str, parent: str | None) -> int:
        """Move the provider under another parent, None to make it a root; returns its generation.

        Raises PlacementError below microversion 1.37.
        """
        action = f"move the provider {name} ({uuid}) under {parent or 'no parent'}"
        if not self.speaks(_REPARENTING):
            raise PlacementError(
                f"Placement cannot {action}: that needs microversion {_REPARENTING}, "
                f"and the agent uses {self.microversion} there."
            )
        return self._put_provider(uuid, {"name": name, "parent_provider_uuid": parent}, action)

    def delete_provider(self, uuid: str) -> bool:
        """Delete the provider with its contents; False if it did not exist."""
        path = _path("resource_providers", uuid)
        return self._call("DELETE", path, f"delete the provider {uuid}", accept=(404,)).status != 404

    # Contents of a provider: its generation guards each write, and each write returns the new generation.

    def provider_inventories(self, uuid: str) -> tuple[int, Mapping[str, Inventory]]:
        """(generation, {class: inventory}) of the provider."""
        action = f"show the inventories of provider {uuid}"
        reply = self._call("GET", f"{_path('resource_providers', uuid)}/inventories", action)
        return generation_of(reply, action), _inventories(reply, action)

    def put_inventories(self, uuid: str, generation: int, inventories: Mapping[str, Inventory]) -> int:
        """Replace all inventories of the provider; returns its new generation.

        To remove all, put none: the generation does not guard a DELETE.
        Raises PlacementError with placement.inventory.inuse where a class to be removed has allocations.
        """
        body = {"inventories": {name: inventory.to_json() for name, inventory in inventories.items()}}
        return self._put_contents(uuid, generation, "inventories", body)

    def provider_traits(self, uuid: str) -> frozenset[str]:
        """The traits of the provider with that uuid; none if there is no such provider."""
        action = f"show the traits of provider {uuid}"
        reply = self._call("GET", f"{_path('resource_providers', uuid)}/traits", action, accept=(404,))
        if reply.status == 404:
            return frozenset()
        return frozenset(body_member(reply, action, "traits", kind=list))

    def put_traits(self, uuid: str, generation: int, traits: Iterable[str]) -> int:
        """Replace all traits of the provider; returns its new generation."""
        return self._put_contents(uuid, generation, "traits", {"traits": sorted(traits)})

    def put_aggregates(self, uuid: str, generation: int, aggregates: Iterable[str]) -> int:
        """Replace all aggregates (uuids) of the provider; returns its new generation."""
        return self._put_contents(uuid, generation, "aggregates", {"aggregates": sorted(aggregates)})

    def ensure_trait(self, name: str) -> None:
        """Create the custom trait if it does not exist."""
        self._call("PUT", _path("traits", name), f"create the trait {name}")

    def ensure_resource_class(self, name: str) -> None:
        """Create the custom resource class if it does not exist."""
        self._call("PUT", _path("resource_classes", name), f"create the resource class {name}")

    def resource_classes(self) -> frozenset[str]:
        """The names of all resource classes."""
        action = "list the resource classes"
        listed = body_member(
            self._call("GET", "/resource_classes", action), action, "resource_classes", kind=list
        )
        return frozenset(each["name"] for each in listed)

    # Consumers

    def allocations_of(self, consumer: str) -> ConsumerAllocations:
        """The consumer's allocations; none, with generation None, if Placement does not have the consumer.

        Below microversion 1.38 the type is "unknown".
        """

        def read() -> ConsumerAllocations:
            action = f"show the allocations of consumer {consumer}"
            reply = self._call("GET", _path("allocations", consumer), action)
            allocations = {
                provider: dict(allocation["resources"])
                for provider, allocation in body_member(reply, action, "allocations", kind=dict).items()
            }
            owner = {
                key: reply.body[key]
                for key in ("project_id", "user_id", "consumer_type")
                if key in reply.body
            }
            if not self.speaks(CONSUMER_TYPES):
                owner["consumer_type"] = UNTYPED
            return ConsumerAllocations(consumer, allocations, reply.body.get("consumer_generation"), **owner)

        return self.observer.read(consumer, read)

    def write_allocations(self, *writes: ConsumerAllocations) -> None:
        """As `send_allocations`, for a caller that has no use for the outcome: raises its error."""
        self.send_allocations(*writes).check()

    def send_allocations(self, *writes: ConsumerAllocations) -> WriteOutcome:
        """Replace the allocations of these consumers, all or none; each one's generation guards its write.

        Raises UsageError for an empty write to a consumer that does not exist: Placement would keep a record
        that no request shows and that blocks the consumer's first claim (see `bar_first_write`).
        """
        for write in writes:
            if not write.allocations and write.generation is None:
                raise UsageError(
                    f"Consumer {write.consumer} has no allocations, so there are none to remove."
                )
        action = "write the allocations of " + ", ".join(f"consumer {write.consumer}" for write in writes)
        if not writes:
            return WriteDone()
        providers = {uuid for write in writes for uuid in write.allocations or (ANYWHERE,)}
        with self.gate.passing(providers, f"The request to {action}") as waited:
            if waited:
                self.observer.waited([write.consumer for write in writes], waited)
            if len(writes) == 1:
                path = _path("allocations", writes[0].consumer)
                outcome = self._write("PUT", path, action, lambda: self._allocation_body(writes[0]))
            else:
                outcome = self._write("POST", "/allocations", action, lambda: self._allocation_bodies(writes))
            if waited and not isinstance(outcome, WriteDone):
                outcome.error.message = f"{outcome.error.message.rstrip('.')}; before, the request {waited}."
            return self._observed(outcome, writes)

    def _observed(self, outcome: WriteOutcome, writes: Iterable[ConsumerAllocations]) -> WriteOutcome:
        if isinstance(outcome, WriteDone):
            self.observer.wrote(writes)
        return outcome

    def bar_first_write(self, consumer: str) -> WriteOutcome:
        """Have Placement reject every write that takes the consumer for one that does not exist.

        Placement keeps a record of the consumer at generation 0, which no request shows. A client that knows
        of it names that generation, as the conflict does.
        """
        body = self._allocation_body(ConsumerAllocations(consumer, {}, consumer_type=BARRED_TYPE))
        action = f"bar the first write for consumer {consumer}"
        return self._write("PUT", _path("allocations", consumer), action, lambda: body)

    def allocations_of_all(self, consumers: Collection[str]) -> dict[str, ConsumerAllocations]:
        """{consumer: its allocations}, one request each, several at a time where there are many."""
        ordered = sorted(consumers)
        if len(ordered) <= SEQUENTIAL_MAX:
            return {consumer: self.allocations_of(consumer) for consumer in ordered}
        with ThreadPoolExecutor(READERS, thread_name_prefix="plimsoll-read") as pool:
            return dict(zip(ordered, pool.map(self.allocations_of, ordered), strict=True))

    def delete_allocations(self, consumer: str) -> bool:
        """Delete the consumer with its allocations, regardless of its generation; False if it had none."""
        path = _path("allocations", consumer)
        reply = self._call("DELETE", path, f"delete the allocations of consumer {consumer}", accept=(404,))
        self.observer.wrote([ConsumerAllocations(consumer, {})])
        return reply.status != 404

    # Notes, which a served core of Plimsoll takes, and no other Placement

    def leave_note(self, root: str, note: HostNote) -> str:
        """Leave the note of the host with that root provider; nothing where Placement takes no notes.

        A Placement that does not know the route is not asked again. Returns how Placement can lose what it
        has acknowledged, in its words; empty if it says nothing.
        """
        if not self._has_notes:
            return ""
        path, action = _path("hosts", root, "note"), f"take the note of host {root}"
        reply = self._call("PUT", path, action, encode(HostNote, note.bounded()), accept=_NO_ROUTE)
        self._has_notes = reply.status not in _NO_ROUTE
        return reply.headers.get(RISK_HEADER, "")

    def hosts(self) -> tuple[HostReport, ...] | None:
        """All hosts by name, with their notes; None where Placement has no notes. One request."""
        action = "list the hosts"
        reply = self._call("GET", "/hosts", action, accept=_NO_ROUTE)
        if reply.status in _NO_ROUTE:
            return None
        listed = body_member(reply, action, "hosts", kind=list)
        try:
            return decode(tuple[HostReport, ...], listed, "hosts")
        except UsageError as error:
            raise PlacementError(
                f"Placement does not list hosts as the agent knows it: {error.message}"
            ) from error

    def host_candidates(self, query: str) -> Mapping[str, Any] | None:
        """The hosts with a candidate, or all hosts, as a core of Plimsoll tells them; None: it is no core.

        The answer is that of `agent.placement.embedded.fleet`. One request; a Placement that does not know
        the route is not asked again.
        """
        if not self._has_host_candidates:
            return None
        action = "find the hosts that have room"
        reply = self._call("GET", f"/hosts/candidates?{query}", action, accept=_NO_ROUTE)
        self._has_host_candidates = reply.status not in _NO_ROUTE
        return dict(reply.body) if self._has_host_candidates else None

    def allocation_candidates(self, query: str) -> Mapping[str, Any]:
        """`{"allocation_requests": [...], "provider_summaries": {...}}` of Placement's API, in one request.

        Both are empty for a class or a trait that Placement does not know.
        """
        action = "find the hosts that have room"
        reply = self._call("GET", f"/allocation_candidates?{query}", action, accept=(400,))
        if reply.status == 400:
            error = error_of_reply(reply, action, full=False)
            if _UNKNOWN_NAME not in error.message:
                raise error
            return {"allocation_requests": [], "provider_summaries": {}}
        return {
            "allocation_requests": body_member(reply, action, "allocation_requests", kind=list),
            "provider_summaries": body_member(reply, action, "provider_summaries", kind=dict),
        }

    def providers(self, query: str) -> tuple[Provider, ...]:
        """The providers that Placement lists for the query, each without its contents. One request."""
        return tuple(self._list_providers(query, "list the providers"))

    def aggregates_of(self, provider: str) -> frozenset[str]:
        """The aggregates of the provider with that uuid. Raises PlacementConflict if it no longer exists."""
        action = f"show the aggregates of provider {provider}"
        reply = self._get_part(f"{_path('resource_providers', provider)}/aggregates", action)
        return frozenset(body_member(reply, action, "aggregates", kind=list))

    def provider_allocations(self, provider: str) -> ProviderAllocations:
        """The allocations on the provider with that uuid.

        The generation is not newer than the allocations, so that the next write notices a change in between.
        Raises PlacementConflict if the provider no longer exists.
        """
        action = f"show the allocations on provider {provider}"
        reply = self._get_part(f"{_path('resource_providers', provider)}/allocations", action)
        allocations = body_member(reply, action, "allocations", kind=dict)
        return ProviderAllocations(
            generation_of(reply, action),
            {consumer: dict(allocation["resources"]) for consumer, allocation in allocations.items()},
        )

    def provider_usages(self, provider: str) -> Amounts:
        """{class: amount in use} on the provider with that uuid; 0 for a class without allocations.

        Raises PlacementConflict if the provider no longer exists.
        """
        action = f"show the usages of provider {provider}"
        reply = self._get_part(f"{_path('resource_providers', provider)}/usages", action)
        return dict(body_member(reply, action, "usages", kind=dict))

    def count_consumers(self, consumer_type: str, project: str, user: str) -> int | None:
        """How many consumers of that type this owner has, on any host; 0 below microversion 1.38.

        None where Placement cannot tell: OpenStack's, up to 16, answers with an error over PostgreSQL.
        """
        if not self.speaks(CONSUMER_TYPES):
            return 0
        action = f"show the usages of project {project}"
        query = f"project_id={quote(project)}&user_id={quote(user)}&consumer_type={quote(consumer_type)}"
        reply = self._call("GET", f"/usages?{query}", action, accept=(500,))
        if reply.status == 500:
            return None
        usages = body_member(reply, action, "usages", kind=dict)
        return int(usages.get(consumer_type, {}).get("consumer_count", 0))

    def tree_usages(self, root: str, resource_class: str, amount: int) -> Mapping[str, Amounts] | None:
        """{provider uuid: {class: amount in use}} of the whole tree that contains `root`, in one request.

        Placement shows that beside a place for the `amount` of the class in this tree. None: it has no such
        place, or speaks less than microversion 1.31.
        """
        if not self.speaks(_CANDIDATES_IN_TREE):
            return None
        action = f"show the usages of the tree of provider {root}"
        asked = f"resources={quote(resource_class)}:{amount}&in_tree={root}&limit=1"
        reply = self._call("GET", f"/allocation_candidates?{asked}", action)
        summaries = body_member(reply, action, "provider_summaries", kind=dict)
        if not summaries:
            return None
        return {
            uuid: {name: each["used"] for name, each in summary["resources"].items()}
            for uuid, summary in summaries.items()
        }

    def reshape(
        self, inventories: Mapping[str, tuple[int, Mapping[str, Inventory]]], *writes: ConsumerAllocations
    ) -> None:
        """As `send_reshape`, for a caller that has no use for the outcome: raises its error."""
        self.send_reshape(inventories, *writes).check()

    def send_reshape(
        self, inventories: Mapping[str, tuple[int, Mapping[str, Inventory]]], *writes: ConsumerAllocations
    ) -> WriteOutcome:
        """Replace inventories and allocations in one transaction, as POST /reshaper does.

        `inventories` is {provider uuid: (generation, {class: inventory})}. Providers and consumers that are
        not named stay unchanged; a conflict or a rejection changes nothing. It is refused with status 403
        where the agent lacks the role `service`.
        """
        provider_bodies = {
            uuid: {
                "resource_provider_generation": generation,
                "inventories": {name: inventory.to_json() for name, inventory in wanted.items()},
            }
            for uuid, (generation, wanted) in inventories.items()
        }
        outcome = self._write(
            "POST",
            "/reshaper",
            "reshape the tree",
            lambda: {"inventories": provider_bodies, "allocations": self._allocation_bodies(writes)},
        )
        return self._observed(outcome, writes)

    # One request

    def _get_part(self, path: str, action: str) -> Reply:
        """The reply with a part of a provider, whose uuid came from a list that may be outdated by now."""
        reply = self._call("GET", path, action, accept=(404,))
        if reply.status == 404:
            raise PlacementConflict(
                f"Placement did not {action}: another client deleted the provider since it was listed. Read "
                "the tree again.",
                status=404,
            )
        return reply

    def _list_tree(self, root: str) -> list[Provider]:
        return self._list_providers(urlencode({"in_tree": root}), f"show the tree of provider {root}")

    def _list_providers(self, query: str, action: str) -> list[Provider]:
        reply = self._call("GET", f"/resource_providers?{query}", action)
        return [
            listed_provider(record) for record in body_member(reply, action, "resource_providers", kind=list)
        ]

    def _with_contents(self, listed: Provider, known: Provider | None) -> Provider:
        """The listed provider with its contents, from `known` if that has the same generation."""
        if known is None or known.generation != listed.generation:
            return self.read_provider(listed)
        if (known.name, known.parent) == (listed.name, listed.parent):
            return known
        return replace(known, name=listed.name, parent=listed.parent)

    def _put_provider(self, uuid: str, body: Mapping[str, Any], action: str) -> int:
        reply = self._call("PUT", _path("resource_providers", uuid), action, body)
        return int(body_member(reply, action, "generation", kind=int))

    def _put_contents(self, uuid: str, generation: int, part: str, body: dict[str, Any]) -> int:
        action = f"put the {part} of provider {uuid}"
        guarded = {**body, "resource_provider_generation": generation}
        path = f"{_path('resource_providers', uuid)}/{part}"
        return generation_of(self._call("PUT", path, action, guarded), action)

    def _allocation_bodies(self, writes: Iterable[ConsumerAllocations]) -> dict[str, Any]:
        return {write.consumer: self._allocation_body(write) for write in writes}

    def _allocation_body(self, write: ConsumerAllocations) -> dict[str, Any]:
        body: dict[str, Any] = {
            "allocations": {
                provider: {"resources": dict(amounts)} for provider, amounts in write.allocations.items()
            },
            "consumer_generation": write.generation,
            "project_id": write.project_id,
            "user_id": write.user_id,
        }
        if self.speaks(CONSUMER_TYPES):
            body["consumer_type"] = "INSTANCE" if write.consumer_type == UNTYPED else write.consumer_type
        return body

    def speaks(self, microversion: str) -> bool:
        """Whether the client uses this microversion or a later one."""
        return _numbers(self.microversion) >= _numbers(microversion)

    def _call(
        self,
        method: str,
        path: str,
        action: str,
        body: Any = None,
        *,
        accept: tuple[int, ...] = (),
    ) -> Reply:
        """Send one request, and negotiate the microversion if the service rejects it.

        Statuses in `accept` are no errors.
        """
        reply = self._negotiated(method, path, body)
        if 200 <= reply.status < 300 or reply.status in accept:
            return reply
        raise error_of_reply(reply, action, full=False)

    def _write(self, method: str, path: str, action: str, body: Callable[[], Any]) -> WriteOutcome:
        """Send a write of allocations; `body` makes the body, which depends on the microversion."""
        try:
            reply = self._negotiated(method, path, body)
        except PlacementUnavailable as error:
            return WriteUnknown(error) if error.sent else WriteRefused(error)
        except PlacementError as error:
            return WriteRefused(error)
        return outcome_of_reply(reply, action)

    def _negotiated(self, method: str, path: str, body: Any) -> Reply:
        """Send a request; again in the highest microversion that both support, if it is another one."""
        reply = self._send(method, path, body)
        if reply.status != 406:
            return reply
        lowest, highest = self.versions()
        if not _numbers(lowest) <= _numbers(LEAST_MICROVERSION) <= _numbers(highest):
            raise PlacementError(
                f"Placement speaks microversions {lowest} to {highest}, and the agent needs "
                f"{LEAST_MICROVERSION}, where inventory and allocations can be moved in one request: "
                "point [placement] at a newer service (OpenStack Rocky or later).",
                status=406,
            )
        refused, self.microversion = self.microversion, min(highest, self.microversion, key=_numbers)
        return reply if self.microversion == refused else self._send(method, path, body)

    def _send(self, method: str, path: str, body: Any) -> Reply:
        content = body() if callable(body) else body
        return self._transport.request(method, path, content, microversion=self.microversion)


def listed_provider(record: Mapping[str, Any]) -> Provider:
    """The provider of a record of Placement's list, without its contents."""
    return Provider(
        record["uuid"], record["name"], record["parent_provider_uuid"], generation=record["generation"]
    )


def _inventories(reply: Reply, action: str) -> dict[str, Inventory]:
    records = body_member(reply, action, "inventories", kind=dict)
    return {name: inventory_from_json(record) for name, record in records.items()}


def _name_and_uuid(provider: Provider) -> str:
    return f"{provider.name} ({provider.uuid})"


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _numbers(microversion: str) -> tuple[int, ...]:
    return tuple(int(number) for number in microversion.split("."))

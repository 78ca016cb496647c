"""Placement for programs: the embedded core in this process, or one that is served."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast
from urllib.parse import urlencode, urlsplit

from plimsoll.errors import Conflict, InvalidRequest, OutcomeUnknown, PlimsollError, Refused, error_of
from plimsoll.values import claim_body, decode, new_key

if TYPE_CHECKING:
    from agent.placement.client import PlacementClient
    from plimsoll.shapes import Where

Amounts = Mapping[str, int]
Allocations = Mapping[str, Amounts]
"""{provider uuid: {resource class: amount}}"""
TRIES = 10
BESIDE = str(Path(__file__).resolve().parent.parent)
"""Where the agent's package is: Debian's is not on Python's path, and this one is there by a link."""


class Inventory(Protocol):
    """How much of a resource class a provider has: a value of `agent.tree`."""

    @property
    def total(self) -> int:
        """All that there is."""

    @property
    def reserved(self) -> int:
        """What consumers may not have."""

    @property
    def min_unit(self) -> int:
        """The least that one consumer may have."""

    @property
    def max_unit(self) -> int:
        """The most that one consumer may have."""

    @property
    def step_size(self) -> int:
        """A consumer has a multiple of it."""

    @property
    def allocation_ratio(self) -> float:
        """How often what is not reserved may be given."""

    @property
    def capacity(self) -> int:
        """All that consumers may have together."""


class Provider(Protocol):
    """A resource provider: a value of `agent.tree`."""

    @property
    def uuid(self) -> str:
        """Its key."""

    @property
    def name(self) -> str:
        """Its name; no other has it."""

    @property
    def parent(self) -> str | None:
        """The uuid of its parent; None of a root."""

    @property
    def inventories(self) -> Mapping[str, Inventory]:
        """{resource class: inventory}"""

    @property
    def traits(self) -> frozenset[str]:
        """Its traits."""

    @property
    def aggregates(self) -> frozenset[str]:
        """The uuids of its aggregates."""

    @property
    def generation(self) -> int | None:
        """The last one known."""


class Placed(NamedTuple):
    """A consumer, and what it has."""

    consumer: str
    allocations: Allocations


class Placement:
    """A Placement: providers, their inventories, and the allocations of consumers. Any thread may call.

    Amounts are {resource class: amount}, allocations {provider uuid: amounts}. `Provider` and `Inventory` are
    the values of `agent.tree`. Errors are those of the package.
    """

    def __init__(self, client: PlacementClient, *, in_process: bool) -> None:
        """`open` and `connect` call this."""
        self._client: PlacementClient | None = client
        self._process = os.getpid() if in_process else None

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """The embedded core, in this process alone: it locks the directory, which is made if it is missing.

        Each write is on disk when its call returns. Raises PlimsollError where the directory cannot be used,
        as when another process has it, or when it is the state directory of an agent.
        """
        with _errors():
            from agent.placement.client import PlacementClient
            from agent.placement.connect import open_transport

            if not str(directory).strip() or "\0" in str(directory):
                raise InvalidRequest(f"Placement.open: {str(directory)!r} is no name of a directory")
            try:
                Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise PlimsollError(
                    f"Placement.open: {directory} cannot be made: {error.strerror}; give a directory that "
                    "this user may write to"
                ) from error
            if Path(directory, "agent.db").exists():
                raise PlimsollError(
                    f"Placement.open: {directory} is the state directory of an agent, which alone writes its "
                    "Placement: ask the agent, with plimsoll.Agent"
                )
            return cls(
                PlacementClient(open_transport("embedded", state_dir=Path(directory))), in_process=True
            )

    @classmethod
    def connect(cls, url: str, *, token: str | None = None, timeout: float = 30.0, **options: Any) -> Self:
        """One that is served, of Plimsoll or of OpenStack, at `unix:PATH` or `http[s]://...`.

        `options` are those of the group [placement] of plimsoll.conf, such as auth_type, username, cafile.
        Several addresses of one Placement are separated by commas. Connects with the first call. Raises
        InvalidRequest for an address or an option that there is not.
        """
        with _errors():
            from agent.config.options import AGENT_OPTIONS
            from agent.placement.client import PlacementClient
            from agent.placement.transport import SocketTransport, Transport
            from agent.placement.transport_http import HttpTransport

            if url.startswith("unix:"):
                path = Path(url.removeprefix("unix:"))
                transport: Transport = SocketTransport(path, token=token, timeout_s=timeout)
            else:
                for address in url.split(","):
                    parts = urlsplit(address.strip())
                    if parts.scheme not in ("http", "https") or not parts.hostname:
                        raise InvalidRequest(f"{address!r} is no address: http[s]://HOST[:PORT] or unix:PATH")
                unknown = sorted(options.keys() - {option.dest for option in AGENT_OPTIONS["placement"]})
                if unknown:
                    raise InvalidRequest(f"[placement] has no option {unknown[0]!r}")
                given = {"auth_type": "admin_token", "token": token or "admin", "timeout": timeout}
                transport = HttpTransport.from_options({"endpoint_override": url} | given | options)
            return cls(PlacementClient(transport), in_process=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; the directory is free for another process then. Doing it again does no harm."""
        if self._client is not None:
            with self._calling() as client:
                client.close()
            self._client = None

    # Providers

    def providers(self, **query: str) -> tuple[Provider, ...]:
        """The providers, without their contents; `query` is Placement's: name, in_tree, resources, ..."""
        with self._calling() as client:
            return client.providers(urlencode(query))

    def inventories(self, provider: str) -> Mapping[str, Inventory]:
        """{resource class: inventory} of a provider."""
        with self._calling() as client:
            return client.provider_inventories(provider)[1]

    def put_provider(
        self,
        name: str,
        inventories: Mapping[str, Inventory | int],
        *,
        traits: Sequence[str] = (),
        aggregates: Sequence[str] = (),
        parent: str | None = None,
        uuid: str | None = None,
    ) -> Provider:
        """Make the provider of that name, if there is none, and give it these contents; the provider.

        A number is the total of an inventory. Custom classes and traits are made. Raises Conflict where
        another program wrote it meanwhile, or where what is in use would go.
        """
        if not name.strip():
            raise InvalidRequest("put_provider: a provider has a name")
        with self._calling() as client:
            from agent import tree

            contents = {
                kind: tree.Inventory(total) if isinstance(total, int) else cast(tree.Inventory, total)
                for kind, total in inventories.items()
            }
            found = client.find_provider(name=name)
            if found is None:
                found = tree.Provider(uuid or new_key(), name, parent)
                client.create_provider(found)
            for kind in contents:
                if kind.startswith("CUSTOM_"):
                    client.ensure_resource_class(kind)
            for trait in traits:
                if trait.startswith("CUSTOM_"):
                    client.ensure_trait(trait)
            generation = client.read_provider(found).generation or 0
            generation = client.put_traits(found.uuid, generation, traits)
            generation = client.put_aggregates(found.uuid, generation, aggregates)
            client.put_inventories(found.uuid, generation, contents)
            return client.read_provider(found)

    def delete_provider(self, provider: str) -> bool:
        """Delete a provider with its contents; False if there was none. Raises Conflict if it is in use."""
        with self._calling() as client:
            return client.delete_provider(provider)

    def usages(self, provider: str) -> Amounts:
        """{resource class: amount in use} of a provider."""
        with self._calling() as client:
            return client.provider_usages(provider)

    # Consumers

    def allocations(self, consumer: str) -> Allocations:
        """What the consumer has; empty where it has nothing."""
        with self._calling() as client:
            return client.allocations_of(consumer).allocations

    def claim(
        self,
        asked: Allocations | None = None,
        *,
        resources: Amounts | None = None,
        consumer: str = "",
        project: str = "plimsoll",
        user: str = "plimsoll",
        **query: str,
    ) -> Placed:
        """Claim these allocations, or the first candidate for the `resources`; `query` as in `candidates`.

        The key is the consumer, without one a new uuid; the same claim again gets the same answer. Raises
        Refused where it does not fit, Conflict where the consumer has something else, OutcomeUnknown.
        """
        from agent.placement.client import ConsumerAllocations
        from agent.placement.transport import WriteDone, WriteUnknown

        is_new, consumer = not consumer, consumer or new_key()
        failure: PlimsollError = Refused(f"Nothing was asked for {consumer}.", key=consumer)
        for _ in range(TRIES):
            with self._calling(consumer) as client:
                held = ConsumerAllocations(consumer, {}) if is_new else client.allocations_of(consumer)
                amounts: dict[str, int] = {}
                for part in held.allocations.values():
                    amounts |= {kind: amounts.get(kind, 0) + amount for kind, amount in part.items()}
                if held.allocations and (asked == held.allocations or (not asked and amounts == resources)):
                    return Placed(consumer, held.allocations)
                if held.allocations:
                    raise Conflict(f"{consumer} has another allocation: release it first.", key=consumer)
                chosen = asked or next(iter(self.candidates(resources or {}, limit="1", **query)), None)
                if not chosen:
                    raise self._refusal(consumer, resources or {}, query)
                outcome = client.send_allocations(
                    ConsumerAllocations(consumer, chosen, held.generation, project, user)
                )
            if isinstance(outcome, WriteDone):
                return Placed(consumer, chosen)
            failure = _error(outcome.error, consumer)
            if isinstance(outcome, WriteUnknown):
                raise OutcomeUnknown(failure.message, key=consumer) from outcome.error
            if asked is not None and not isinstance(failure, Conflict):
                break  # the chosen place of another candidate may be full just now, this one is
        raise failure

    def _refusal(self, consumer: str, resources: Amounts, query: Mapping[str, str]) -> Refused:
        """Why no candidate was found: what the nearest hosts lack, unless the query has more than amounts."""
        sentence, shortfalls = f"No provider has room for {consumer}", []
        if resources and not query:
            answer = self.where(resources=resources)
            sentence += f": {answer.sentence}"
            shortfalls = [
                {
                    "resource_class": miss.lacks.split()[-1],
                    "asked": miss.asked,
                    "free": miss.free or 0,
                    "provider": miss.provider,
                    "provider_uuid": miss.provider_uuid,
                    "reason": f"only {miss.free or 0} of {miss.total or 0} are free",
                }
                for miss in answer.nearest
                if miss.asked is not None
            ]
        return Refused(f"{sentence}.", details={"shortfalls": shortfalls}, key=consumer)

    def release(self, consumer: str) -> bool:
        """Release all that the consumer has; False if that was nothing. Doing it again does no harm."""
        with self._calling(consumer) as client:
            return client.delete_allocations(consumer)

    def candidates(self, resources: Amounts, **query: str) -> tuple[Allocations, ...]:
        """The allocations that a claim for these resources may have now.

        `query` is Placement's, such as required="HW_CPU_X86_AVX2", member_of, in_tree, limit. Raises
        InvalidRequest.
        """
        given = {"resources": ",".join(f"{kind}:{amount}" for kind, amount in resources.items())} | query
        with self._calling() as client:
            found = client.allocation_candidates(urlencode(given, safe=":,!"))["allocation_requests"]
        return tuple(
            {uuid: part["resources"] for uuid, part in request["allocations"].items()} for request in found
        )

    def where(
        self, *asked: Any, resources: Amounts | None = None, count: int = 1, strategy: str = "pack"
    ) -> Where:
        """On which hosts requests fit, and why not on the others, as `Agent.where` tells it."""
        from agent.fleet.answer import answer_body
        from plimsoll import shapes

        requests = [claim_body(each) for each in asked]
        if resources is not None:
            requests.insert(0, claim_body(None, resources))
        with self._calling() as client:
            body = {"requests": requests, "count": count, "strategy": strategy}
            return decode(shapes.Where, answer_body(client, body))

    @contextmanager
    def _calling(self, key: str = "") -> Iterator[PlacementClient]:
        """Raises PlimsollError in a process that was forked off that which opened the core."""
        if self._process not in (None, os.getpid()):
            raise PlimsollError(
                f"Placement was opened by the process {self._process}, and this is another one, forked off "
                "it: its threads and its lock are not here. Open it after the fork, in one process, and have "
                "the others connect to `plimsoll placement serve`."
            )
        if self._client is None:
            raise InvalidRequest("This Placement is closed: open it or connect again")
        with _errors(key):
            yield self._client


@contextmanager
def _errors(key: str = "") -> Iterator[None]:
    """Raise the errors of the package for those of the agent's code, and where that is not installed."""
    try:
        if BESIDE not in sys.path and Path(BESIDE, "agent").is_dir():
            sys.path.append(BESIDE)
        from agent.errors import PlimsollError as AgentError
    except ImportError as error:
        raise PlimsollError(
            "Placement needs the agent's package, which has this one in it: pip uninstall plimsoll-client, "
            "then pip install plimsoll. The package plimsoll-client alone has what speaks to agents."
        ) from error
    try:
        yield
    except AgentError as error:
        raise _error(error, key) from error


def _error(error: Any, key: str) -> PlimsollError:
    body = {"error": {"code": error.code, "message": error.message, "details": dict(error.details)}}
    failed = error_of(getattr(error, "status", 0) or error.http_status, body)  # Placement's own status first
    failed.key = key
    return failed

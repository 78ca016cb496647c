"""The placement client: every call of it is a Placement API call, typed, over whichever transport.

Source: https://docs.openstack.org/api-ref/placement/. Errors, for every method:

    PlacementUnavailable  no answer came, or a 5xx, or too many requests: a state, worth trying again later;
                          `details["retry_after"]` has the seconds, if it said how many; `details["busy"]`
                          is true where somebody is there
    PlacementConflict     409 placement.concurrent_update: somebody wrote in between, read again
    PlacementFull         409 to a write of allocations: the resources are not there
    PlacementError        anything else; `status` and `placement_code` are placement's own
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from agent.errors import PlacementConflict, PlacementError, UsageError
from agent.placement.replies import body_member, error_of_reply, generation_of, inventory_from_json
from agent.placement.transport import Reply, Transport
from agent.shapes import Allocations, Holders
from agent.tree import Inventory, Provider, ProviderTree

DEFAULT_MICROVERSION = "1.39"
LEAST_MICROVERSION = "1.30"
SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
AGGREGATES_MAX = 100
_CONSUMER_TYPES = "1.38"
_REPARENTING = "1.37"
_UNTYPED = "unknown"  # how placement shows a consumer that was written before 1.38


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """What one consumer holds, {provider uuid: {class: amount}}, or shall hold.

    `generation` is placement's, None for a consumer that it does not have; empty `allocations` delete the
    consumer. Below microversion 1.38 the type is neither sent nor seen.
    """

    consumer: str
    allocations: Allocations
    generation: int | None = None
    project_id: str = "plimsoll"
    user_id: str = "plimsoll"
    consumer_type: str = "INSTANCE"


class ProviderAllocations(NamedTuple):
    """The allocations on one provider: its generation, and {consumer: {class: amount}}."""

    generation: int
    consumers: Holders


class PlacementClient:
    """Placement's API for one agent. `microversion` is asked for with every call.

    A service that does not speak it is asked for its range, and spoken to in the highest that both know;
    below LEAST_MICROVERSION that is a PlacementError.
    """

    def __init__(self, transport: Transport, *, microversion: str = DEFAULT_MICROVERSION) -> None:
        self._transport = transport
        self.microversion = microversion

    def close(self) -> None:
        self._transport.close()

    def versions(self) -> tuple[str, str]:
        """The lowest and the highest microversion that the service speaks."""
        asked = "say which versions it speaks"
        reply = self._transport.request("GET", "/", microversion="1.0")
        if reply.status != 200:
            raise error_of_reply(reply, asked, full=False)
        for version in body_member(reply, asked, "versions", kind=list):
            if "max_version" in version:
                return str(version["min_version"]), str(version["max_version"])
        raise PlacementError("Placement shows no microversions: check that the address is placement's.")

    # Providers

    def read_tree(self, root: str, known: ProviderTree | None = None) -> ProviderTree:
        """The tree that `root` is in, empty if placement does not know it.

        One request, and three more for each provider whose generation differs from the one in `known`.
        """
        old = known or ProviderTree()
        return ProviderTree(
            self._filled(provider, old.get(provider.uuid)) for provider in self._in_tree(root)
        )

    def generations(self, root: str) -> Mapping[str, int]:
        """{provider uuid: generation} of the tree that `root` is in, in one request."""
        return {provider.uuid: provider.generation or 0 for provider in self._in_tree(root)}

    def sharing_providers(
        self, aggregates: Iterable[str], known: Iterable[Provider] = ()
    ) -> tuple[Provider, ...]:
        """The providers in these aggregates, of whichever tree, that share by them; by name.

        One request for every AGGREGATES_MAX of them, and three more for each provider whose generation
        differs from that in `known`.
        """
        names, old = sorted(aggregates), {provider.uuid: provider for provider in known}
        found: dict[str, Provider] = {}
        for first in range(0, len(names), AGGREGATES_MAX):
            some = ",".join(names[first : first + AGGREGATES_MAX])
            query = {"member_of": f"in:{some}", "required": SHARING_TRAIT}
            shown = self._providers(query, "show what is shared with this host")
            found |= {each.uuid: each for each in shown}
        listed = sorted(found.values(), key=lambda provider: provider.name)
        return tuple(self._filled(provider, old.get(provider.uuid)) for provider in listed)

    def find_provider(self, *, name: str | None = None, uuid: str | None = None) -> Provider | None:
        """The provider with that name, or that uuid, without its contents (`read_provider` reads them)."""
        wanted = {key: value for key, value in (("name", name), ("uuid", uuid)) if value is not None}
        found = self._providers(wanted, f"find the provider {name or uuid}")
        return found[0] if found else None

    def read_provider(self, provider: Provider) -> Provider:
        """The provider with its inventories, traits, aggregates and generation as they are now.

        Three requests. The generation is the lowest that was seen, so that a change in between is noticed at
        the next write. Raises PlacementConflict if the provider has gone.
        """
        base = _path("resource_providers", provider.uuid)
        asked = f"show what is on {_called(provider)}"
        bodies = []
        for what in ("inventories", "traits", "aggregates"):
            reply = self._call("GET", f"{base}/{what}", asked, also=(404,))
            if reply.status == 404:
                raise PlacementConflict(
                    f"Provider {_called(provider)} was deleted while it was being read: read the tree again.",
                    status=404,
                )
            bodies.append(reply)
        inventories, traits, aggregates = bodies
        return replace(
            provider,
            inventories={
                name: inventory_from_json(each)
                for name, each in body_member(inventories, asked, "inventories", kind=dict).items()
            },
            traits=frozenset(body_member(traits, asked, "traits", kind=list)),
            aggregates=frozenset(body_member(aggregates, asked, "aggregates", kind=list)),
            generation=min(generation_of(reply, asked) for reply in bodies),
        )

    def create_provider(self, provider: Provider) -> int:
        """Create it, empty; its generation. PlacementError with DUPLICATE_NAME: name or uuid are taken."""
        body: dict[str, Any] = {"uuid": provider.uuid, "name": provider.name}
        if provider.parent is not None:
            body["parent_provider_uuid"] = provider.parent
        asked = f"create the provider {_called(provider)}"
        return int(
            body_member(self._call("POST", "/resource_providers", asked, body), asked, "generation", kind=int)
        )

    def rename_provider(self, uuid: str, name: str) -> int:
        """Give it another name; its generation. PlacementError with DUPLICATE_NAME: that is taken."""
        return self._put_provider(uuid, {"name": name}, f"rename the provider {uuid} to {name}")

    def reparent_provider(self, uuid: str, name: str, parent: str | None) -> int:
        """Hang it under another parent, None for none; its generation. From microversion 1.37."""
        asked = f"move the provider {name} ({uuid}) under {parent or 'no parent'}"
        if not self.speaks(_REPARENTING):
            raise PlacementError(
                f"Placement cannot {asked}: that needs microversion {_REPARENTING}, "
                f"and it is spoken to in {self.microversion}."
            )
        return self._put_provider(uuid, {"name": name, "parent_provider_uuid": parent}, asked)

    def delete_provider(self, uuid: str) -> bool:
        """Delete it with all that is on it; False if it had gone already."""
        path = _path("resource_providers", uuid)
        return self._call("DELETE", path, f"delete the provider {uuid}", also=(404,)).status != 404

    # What is on a provider: each write is guarded by the provider's generation and returns the new one.

    def provider_inventories(self, uuid: str) -> tuple[int, Mapping[str, Inventory]]:
        """(generation, {class: inventory})"""
        asked = f"show the inventories of provider {uuid}"
        reply = self._call("GET", f"{_path('resource_providers', uuid)}/inventories", asked)
        found = body_member(reply, asked, "inventories", kind=dict)
        return generation_of(reply, asked), {name: inventory_from_json(each) for name, each in found.items()}

    def put_inventories(self, uuid: str, generation: int, inventories: Mapping[str, Inventory]) -> int:
        """Replace them. PlacementError with placement.inventory.inuse: somebody holds a class that goes."""
        body = {"inventories": {name: inventory.to_json() for name, inventory in inventories.items()}}
        return self._put_contents(uuid, generation, "inventories", body)

    def delete_inventories(self, uuid: str, generation: int) -> int:
        """Take them all away. (A PUT of none: DELETE would not be guarded by the generation.)"""
        return self.put_inventories(uuid, generation, {})

    def put_traits(self, uuid: str, generation: int, traits: Iterable[str]) -> int:
        return self._put_contents(uuid, generation, "traits", {"traits": sorted(traits)})

    def put_aggregates(self, uuid: str, generation: int, aggregates: Iterable[str]) -> int:
        return self._put_contents(uuid, generation, "aggregates", {"aggregates": sorted(aggregates)})

    def ensure_trait(self, name: str) -> None:
        self._call("PUT", _path("traits", name), f"create the trait {name}")

    def ensure_resource_class(self, name: str) -> None:
        self._call("PUT", _path("resource_classes", name), f"create the resource class {name}")

    # Consumers

    def allocations_of(self, consumer: str) -> ConsumerAllocations:
        """What it holds; no allocations and generation None if placement has no such consumer.

        Where consumers have no types (below 1.38) its type is "unknown".
        """
        asked = f"show what consumer {consumer} holds"
        reply = self._call("GET", _path("allocations", consumer), asked)
        held = {
            provider: dict(each["resources"])
            for provider, each in body_member(reply, asked, "allocations", kind=dict).items()
        }
        said = {
            key: reply.body[key] for key in ("project_id", "user_id", "consumer_type") if key in reply.body
        }
        if not self.speaks(_CONSUMER_TYPES):
            said["consumer_type"] = _UNTYPED
        return ConsumerAllocations(consumer, held, reply.body.get("consumer_generation"), **said)

    def write_allocations(self, *writes: ConsumerAllocations) -> None:
        """Write what these consumers shall hold, all or none, each guarded by its generation.

        Raises UsageError for an empty write of a consumer that does not exist: placement would keep a record
        that nobody can see and that bars the consumer's first claim.
        """
        for write in writes:
            if not write.allocations and write.generation is None:
                raise UsageError(
                    f"Consumer {write.consumer} holds nothing, so there is nothing to take away."
                )
        asked = "write the allocations of " + ", ".join(f"consumer {write.consumer}" for write in writes)
        if len(writes) == 1:
            path = _path("allocations", writes[0].consumer)
            self._call("PUT", path, asked, lambda: self._allocation_body(writes[0]), full=True)
        elif writes:
            self._call(
                "POST",
                "/allocations",
                asked,
                lambda: {write.consumer: self._allocation_body(write) for write in writes},
                full=True,
            )

    def delete_allocations(self, consumer: str) -> bool:
        """Take all away from it, whatever its generation; False if it held nothing."""
        path = _path("allocations", consumer)
        reply = self._call("DELETE", path, f"delete the allocations of consumer {consumer}", also=(404,))
        return reply.status != 404

    def provider_allocations(self, provider: str) -> ProviderAllocations:
        """The allocations on the provider with that uuid.

        The generation is no newer than the rest, so that a change in between is noticed at the next write.
        """
        asked = f"show who holds what on provider {provider}"
        reply = self._call("GET", f"{_path('resource_providers', provider)}/allocations", asked)
        held = body_member(reply, asked, "allocations", kind=dict)
        generation = generation_of(reply, asked)
        return ProviderAllocations(
            generation, {consumer: dict(each["resources"]) for consumer, each in held.items()}
        )

    def provider_usages(self, provider: str) -> Mapping[str, int]:
        """{class: amount in use} on the provider with that uuid; classes nobody uses stand at 0."""
        asked = f"show the usages of provider {provider}"
        reply = self._call("GET", f"{_path('resource_providers', provider)}/usages", asked)
        return dict(body_member(reply, asked, "usages", kind=dict))

    def reshape(
        self, offers: Mapping[str, tuple[int, Mapping[str, Inventory]]], *writes: ConsumerAllocations
    ) -> None:
        """Replace the inventories of several providers, {uuid: (generation, inventories)}, and what consumers
        hold, in one transaction.

        What the body does not name stays. A conflict or a refusal changes nothing of it; where the service
        does not let the agent reshape (role `service`), that is a PlacementError with status 403.
        """
        inventories = {
            uuid: {
                "resource_provider_generation": generation,
                "inventories": {name: inventory.to_json() for name, inventory in wanted.items()},
            }
            for uuid, (generation, wanted) in offers.items()
        }
        self._call(
            "POST",
            "/reshaper",
            "reshape the tree",
            lambda: {
                "inventories": inventories,
                "allocations": {write.consumer: self._allocation_body(write) for write in writes},
            },
            full=True,
        )

    # One request

    def _in_tree(self, root: str) -> list[Provider]:
        return self._providers({"in_tree": root}, f"show the tree of provider {root}")

    def _providers(self, query: Mapping[str, str], asked: str) -> list[Provider]:
        reply = self._call("GET", f"/resource_providers?{urlencode(query)}", asked)
        return [
            Provider(each["uuid"], each["name"], each["parent_provider_uuid"], generation=each["generation"])
            for each in body_member(reply, asked, "resource_providers", kind=list)
        ]

    def _filled(self, listed: Provider, known: Provider | None) -> Provider:
        if known is None or known.generation != listed.generation:
            return self.read_provider(listed)
        if (known.name, known.parent) == (listed.name, listed.parent):
            return known
        return replace(known, name=listed.name, parent=listed.parent)

    def _put_provider(self, uuid: str, body: Mapping[str, Any], asked: str) -> int:
        reply = self._call("PUT", _path("resource_providers", uuid), asked, body)
        return int(body_member(reply, asked, "generation", kind=int))

    def _put_contents(self, uuid: str, generation: int, what: str, body: dict[str, Any]) -> int:
        asked = f"put the {what} of provider {uuid}"
        guarded = {**body, "resource_provider_generation": generation}
        path = f"{_path('resource_providers', uuid)}/{what}"
        return generation_of(self._call("PUT", path, asked, guarded), asked)

    def _allocation_body(self, write: ConsumerAllocations) -> dict[str, Any]:
        body: dict[str, Any] = {
            "allocations": {
                provider: {"resources": dict(amounts)} for provider, amounts in write.allocations.items()
            },
            "consumer_generation": write.generation,
            "project_id": write.project_id,
            "user_id": write.user_id,
        }
        if self.speaks(_CONSUMER_TYPES):
            body["consumer_type"] = "INSTANCE" if write.consumer_type == _UNTYPED else write.consumer_type
        return body

    def speaks(self, microversion: str) -> bool:
        """Whether the service is spoken to in that microversion or a later one."""
        return _numbers(self.microversion) >= _numbers(microversion)

    def _call(
        self,
        method: str,
        path: str,
        asked: str,
        body: Any = None,
        *,
        also: tuple[int, ...] = (),
        full: bool = False,
    ) -> Reply:
        """Send one request; `also` are statuses that are answers too, `full`: a 409 means it does not fit.

        A `body` that depends on the microversion is a function.
        """
        reply = self._send(method, path, body)
        if reply.status == 406 and self._negotiated():
            reply = self._send(method, path, body)
        if 200 <= reply.status < 300 or reply.status in also:
            return reply
        raise error_of_reply(reply, asked, full)

    def _send(self, method: str, path: str, body: Any) -> Reply:
        said = body() if callable(body) else body
        return self._transport.request(method, path, said, microversion=self.microversion)

    def _negotiated(self) -> bool:
        """Whether a microversion was found that the service speaks and that was not asked for yet."""
        lowest, highest = self.versions()
        if not _numbers(lowest) <= _numbers(LEAST_MICROVERSION) <= _numbers(highest):
            raise PlacementError(
                f"Placement speaks microversions {lowest} to {highest}, and the agent needs "
                f"{LEAST_MICROVERSION}, where inventory and allocations can be moved in one request: "
                "point [placement] at a newer service (OpenStack Rocky or later).",
                status=406,
            )
        refused, self.microversion = self.microversion, min(highest, self.microversion, key=_numbers)
        return self.microversion != refused


def _called(provider: Provider) -> str:
    return f"{provider.name} ({provider.uuid})"


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _numbers(microversion: str) -> tuple[int, ...]:
    return tuple(int(number) for number in microversion.split("."))

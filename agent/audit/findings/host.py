"""Findings about the host's devices and providers. Pure.

An exact unit that two instances have, a unit that a guest uses and this host does not offer, a device that
is not well, and an inventory of which more is allocated than there is: it has shrunk, or another program
wrote past its capacity.
"""

from collections.abc import Iterator

from agent.audit.cases import FindingKind, TableRow
from agent.audit.finding import Finding
from agent.audit.observation import Observation
from agent.errors import counted
from agent.providers.limits import beyond_caps
from agent.providers.retention import way_back
from agent.tree import Provider


class SharedUnit(FindingKind):
    """A device, a virtual function or a dedicated CPU that several rows claim or use."""

    name = "shared unit"
    rows = (
        TableRow(
            "Two instances have the same exact unit: both claim it, both use it, or one claims it and the "
            "definition of the other's guest names it.",
            "None: take the unit from one of the guests, or release one of the claims.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each unit with several owners, of which one claims it or runs with it."""
        claimed: dict[tuple[str, str], set[str]] = {}
        used: dict[tuple[str, str], set[str]] = {}
        named: dict[tuple[str, str], set[str]] = {}
        for instance, row in observation.rows().items():
            for claim in row.claimed.values():
                for _, name, unit in claim.exact:
                    claimed.setdefault((name, unit), set()).add(instance)
            for used_unit in row.guest.units if row.guest else ():
                key = used_unit.resource_class, used_unit.unit
                column = named if row.guest is None or row.guest.is_off else used
                column.setdefault(key, set()).add(instance)
        for key in sorted(claimed.keys() | used.keys()):
            columns = {"claimed": claimed, "used": used, "named": named}
            owners = {title: sorted(column.get(key, ())) for title, column in columns.items()}
            instances = sorted({instance for who in owners.values() for instance in who})
            if len(instances) > 1:
                yield Finding(
                    self.name,
                    key[1],
                    f"{', '.join(instances)} have the same {key[0]} {key[1]}: take it from one of the "
                    "guests, or release one of the claims.",
                    {"class": key[0], **owners},
                )


class UnknownDevice(FindingKind):
    """A unit that is in use and in no inventory, of a class whose units the driver names."""

    name = "unknown device"
    rows = (
        TableRow(
            "A guest uses a unit that this host does not offer.",
            "None: take the device from the guest, or let the host offer it.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each such unit of each guest that could be read and is not shut off."""
        offered: dict[str, set[str]] = {}
        for classes in observation.offered.values():
            for name, units in classes.items():
                offered.setdefault(name, set()).update(units)
        for guest in observation.guests.values():
            if guest.problem is not None or guest.is_off:
                continue
            for used in guest.units:
                if used.resource_class in offered and used.unit not in offered[used.resource_class]:
                    yield Finding(
                        self.name,
                        used.unit,
                        f"The guest {guest.uuid} uses the {used.resource_class} {used.unit}, which this host "
                        "does not offer.",
                        {"guest": guest.uuid, "class": used.resource_class, "device": used.device},
                    )


class UnhealthyDevice(FindingKind):
    """A device that has shown a symptom in several looks, or did a short while ago."""

    name = "unhealthy device"
    rows = (
        TableRow(
            "A device is not well, so the agent offers it to no guest. The finding names who has it.",
            "None: mend the device; who has it may have to move away. It is offered again when it is well, "
            "or by `plimsoll devices clear`.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each device that is withheld because of its health."""
        for address, health in observation.unhealthy.items():
            holders = observation.holders_of(address)
            has = f" {', '.join(holders)} {'have' if len(holders) > 1 else 'has'} it." if holders else ""
            yield Finding(
                self.name,
                address,
                f"{health.sentence}{has}",
                {"symptoms": sorted(health.causes), "since": health.since, "consumers": list(holders)},
            )


class ShrunkInventory(FindingKind):
    """An inventory with less capacity than its consumers hold."""

    name = "shrunk inventory"
    rows = (
        TableRow(
            "More is allocated than there is, or the host has no more of the class at all. The finding names "
            "the consumers.",
            "None: release one of the consumers, or move it away; or bring back what has vanished.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each class of each of this host's own providers; a fully reserved one is skipped.

        Total and reserved amounts are equal while a reshape is under way, or while an operator drains it. A
        cap can reserve all of it, too: that is skipped where the host as a whole is within the cap.
        What the agent reserves for the unclaimed use of guests makes no inventory smaller: the findings about
        these guests name them.
        """
        own = {uuid: on_it for uuid, on_it in observation.holders.items() if observation.host.is_own(uuid)}
        beyond = beyond_caps(observation.host.caps, own)
        for provider in (observation.unreserved or observation.host).providers:
            if not observation.host.is_own(provider.uuid):
                continue
            on_it = observation.holders.get(provider.uuid, {})
            for name in sorted({name for amounts in on_it.values() for name in amounts}):
                if (provider.uuid, name) in observation.vanished:
                    yield from self._vanished(observation, provider, name)
                    continue
                inventory = provider.inventories.get(name)
                if inventory is not None and inventory.reserved >= inventory.total and name not in beyond:
                    continue
                consumers = {
                    consumer: amounts[name] for consumer, amounts in sorted(on_it.items()) if name in amounts
                }
                capacity = inventory.capacity if inventory else 0
                used = sum(consumers.values())
                if used > capacity:
                    yield Finding(
                        self.name,
                        provider.uuid,
                        f"{provider.name} has {capacity} {name}, but {counted(used, 'is', 'are')} allocated, "
                        f"to {', '.join(consumers)}: release one of these consumers, "
                        + (
                            f"move it away, or raise [DEFAULT] cap = {name}={beyond[name]}."
                            if name in beyond
                            else "or move it away."
                        ),
                        {"class": name, "capacity": int(capacity), "used": used, "consumers": consumers},
                    )

    def _vanished(self, observation: Observation, provider: Provider, name: str) -> Iterator[Finding]:
        """What is allocated of a class that is gone; of claims that name its units, "vanished unit" tells."""
        consumers = {
            consumer: amounts[name]
            for consumer, amounts in sorted(observation.holders[provider.uuid].items())
            if name in amounts
            and not (
                consumer in observation.claims
                and observation.claims[consumer].units.get(provider.uuid, {}).get(name)
            )
        }
        if consumers:
            used = sum(consumers.values())
            yield Finding(
                self.name,
                provider.uuid,
                f"This host has no {name} on {provider.name} any more, but {counted(used, 'is', 'are')} "
                f"allocated, to {', '.join(consumers)}. {way_back(provider, name)}, or release these "
                "consumers, by force if their guests run.",
                {"class": name, "capacity": 0, "used": used, "consumers": consumers},
            )

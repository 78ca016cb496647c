"""More is allocated than there is: the inventory has shrunk, or another program wrote past its capacity."""

from collections.abc import Iterator

from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.errors import counted


class ShrunkInventory(FindingKind):
    """An inventory with less capacity than its consumers hold."""

    name = "shrunk inventory"
    rows = (
        TableRow(
            "More is allocated than there is. The finding names the consumers.",
            "None: release one of the consumers, or move it away.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each class of each of this host's own providers; a fully reserved one is skipped.

        Total and reserved amounts are equal while a reshape is under way, or while an operator drains it.
        What the agent reserves for the unclaimed use of guests makes no inventory smaller: the findings about
        these guests name them.
        """
        for provider in (observation.unreserved or observation.host).providers:
            if not observation.host.is_own(provider.uuid):
                continue
            on_it = observation.holders.get(provider.uuid, {})
            for name in sorted({name for amounts in on_it.values() for name in amounts}):
                inventory = provider.inventories.get(name)
                if inventory is not None and inventory.reserved >= inventory.total:
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
                        f"to {', '.join(consumers)}: release one of these consumers, or move it away.",
                        {"class": name, "capacity": int(capacity), "used": used, "consumers": consumers},
                    )

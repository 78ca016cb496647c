"""More is allocated than there is: the inventory has shrunk, or another program wrote past its capacity."""

from collections.abc import Iterator

from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.errors import counted
from agent.providers.caps import beyond_caps


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

"""The trait that says whose providers these are. Pure.

nova 34 marks its providers with OWNER_NOVA, and Cyborg its own with OWNER_CYBORG, so that a scheduler tells
them apart in a Placement that they share. The agent marks what it describes with a trait of its own.

Source: nova 34, nova/scheduler/request_filter.py (owner_nova_filter).
"""

from dataclasses import replace

from agent.driver import Description
from agent.errors import ForeignOwner
from agent.tree import Provider

OWNER_TRAIT = "CUSTOM_OWNER_PLIMSOLL"

_STARTS = ("OWNER_", "CUSTOM_OWNER_")


def with_owner(description: Description, trait: str) -> Description:
    """The description with the owner's trait on each provider."""
    providers = (replace(provider, traits=provider.traits | {trait}) for provider in description.providers)
    return replace(description, providers=tuple(providers))


def check_owner(root: Provider | None, trait: str) -> None:
    """Check that no other service owns the host's root provider, as Placement has it; None: it has none yet.

    Raises ForeignOwner.
    """
    if root is None:
        return
    foreign = sorted(name for name in root.traits if name.startswith(_STARTS) and name != trait)
    if foreign:
        raise ForeignOwner(
            f"The host's root provider {root.name} ({root.uuid}) has the trait {', '.join(foreign)}: another "
            "service manages it, and nothing was written. If that service no longer runs here, take the "
            "trait from the provider; else give this host a name or uuid of its own with `plimsoll adopt`.",
            provider=root.uuid,
            traits=foreign,
        )

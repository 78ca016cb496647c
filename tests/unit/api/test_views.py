"""A claim as the API shows it: each group on the provider that serves it."""

from agent.api.views import claim_view
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Provider, ProviderTree

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}
NICS = {"nic1": "CUSTOM_PHYSNET_RED", "nic2": "CUSTOM_PHYSNET_BLUE"}


def test_equal_amounts_without_units_are_shown_on_the_card_of_the_groups_network() -> None:
    tree = ProviderTree(
        [Provider("root", "root"), *(Provider(nic, nic, "root", {}, frozenset({NICS[nic]})) for nic in NICS)]
    )
    groups = tuple(RequestGroup(trait, BANDWIDTH, (frozenset({trait}),)) for trait in NICS.values())
    claim = Claim(
        CONSUMER, ClaimState.CLAIMED, ClaimRequest(CONSUMER, groups), dict.fromkeys(NICS, BANDWIDTH)
    )
    shown = {
        mapping["suffix"]: list(mapping["allocations"]) for mapping in claim_view(claim, tree)["mappings"]
    }
    assert shown == {trait: [nic] for nic, trait in NICS.items()}

"""What a claim gave, in the driver's terms: labels from the groups, cells from the tree, CPUs as pinned."""

from agent.claims.claim import Claim, ClaimState
from agent.claims.domain_demand import given_resources
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import HostCell, HostCells
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import GivenCell, GivenDevice
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
TREE = ProviderTree(
    [
        Provider("root", "root"),
        Provider("cell1", "cell1", "root"),
        Provider("card", "card", "cell1", {"SRIOV_NET_VF": Inventory(4)}),
        Provider("gpu", "gpu", "root", {"PGPU": Inventory(1)}),
    ]
)


def host_cell(number: int, shared: set[int]) -> HostCell:
    return HostCell(number, "root", (), frozenset(shared), frozenset(), 0, 0, 0, {})


CELLS = HostCells((host_cell(0, {0}), host_cell(1, {8, 9})), {"cell1": 1})


def test_devices_have_the_labels_of_their_groups_and_the_cell_of_their_card() -> None:
    request = ClaimRequest(
        CONSUMER,
        (
            RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024}),
            RequestGroup("_RED", {"SRIOV_NET_VF": 1}),
            RequestGroup("pci-0", {"PGPU": 1}),
        ),
        pci=(("a100", 1),),
        name="web1",
    )
    claim = Claim(
        CONSUMER,
        ClaimState.CLAIMED,
        request,
        {"root": {"VCPU": 2, "MEMORY_MB": 1024}, "card": {"SRIOV_NET_VF": 1}, "gpu": {"PGPU": 1}},
        {"card": {"SRIOV_NET_VF": ("0000:41:10.0",)}, "gpu": {"PGPU": ("0000:83:00.0",)}},
    )
    given = given_resources(claim, TREE, CELLS)
    assert (given.uuid, given.name, given.vcpus, given.memory_mb) == (CONSUMER, "web1", 2, 1024)
    assert given.devices == (
        GivenDevice("_RED", "SRIOV_NET_VF", "0000:41:10.0", 1),
        GivenDevice("a100", "PGPU", "0000:83:00.0", None),
    )
    assert given.cells == () and given.pinned == {}


def test_cells_have_their_pins_their_shared_cpus_and_their_page_size() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2, "VCPU": 1, "MEMORY_MB": 3072}),))
    placed = (
        PlacedCell(0, 0, {0: 4, 1: 5}, frozenset(), 2048, 2048, emulator=frozenset({6})),
        PlacedCell(1, 1, {}, frozenset(), 4, 1024, frozenset({2})),
    )
    claim = Claim(CONSUMER, ClaimState.CLAIMED, request, {}, {"root": {"PCPU": ("4", "5")}}, cells=placed)
    given = given_resources(claim, TREE, CELLS)
    assert given.cells == (
        GivenCell(0, 0, 2048, {0: 4, 1: 5}, frozenset(), frozenset({0}), 2048, frozenset({6})),
        GivenCell(1, 1, 1024, {}, frozenset({2}), frozenset({8, 9}), None),
    )
    assert (given.vcpus, given.devices, given.pinned) == (3, (), {})


def test_dedicated_cpus_without_cells_are_pinned_one_to_one() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2, "MEMORY_MB": 512}),))
    units = {"root": {"PCPU": ("7", "11")}}
    claim = Claim(CONSUMER, ClaimState.CLAIMED, request, {"root": {"PCPU": 2, "MEMORY_MB": 512}}, units)
    assert given_resources(claim, TREE, CELLS).pinned == {0: 7, 1: 11}

"""Provider config over a driver's description: precedence, conflicts, and entries that match no provider."""

from dataclasses import replace

from agent.driver import DescribedInventory, DescribedProvider, Description, MoveInstruction
from agent.providers.overlay import overlay
from agent.providers.provider_config import COMPUTE_NODE, ProviderConfig, ProviderEntry

ROOT, GPU = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11", "11111111-8a0c-4a53-9f6b-9b7f2a4f1a11"
UUIDS = {"node1": ROOT, "gpu": GPU}
HOST = Description(
    (
        DescribedProvider("node1", inventories={"VCPU": DescribedInventory(8)}, traits=frozenset({"HW_A"})),
        DescribedProvider("gpu", "node1", {"CUSTOM_GPU": DescribedInventory(2)}),
    ),
    (MoveInstruction("node1", {"CUSTOM_GPU": 2}, "gpu"),),
)


def entry(**changes: object) -> ProviderEntry:
    return replace(ProviderEntry("a.yaml", "providers[0]", traits=frozenset({"CUSTOM_T"})), **changes)


def test_an_explicit_entry_beats_the_one_for_the_host_in_general() -> None:
    """Scenario 23: all of it, whether by name or by uuid."""
    inventory = {"CUSTOM_A": DescribedInventory(3)}
    general = entry(uuid=COMPUTE_NODE, inventories=inventory)
    for own in (entry(name="node1"), entry(uuid=ROOT)):
        for entries in ((general, own), (own, general)):
            root, _ = overlay(ProviderConfig(entries), HOST, UUIDS).description.providers
            assert root.inventories == HOST.providers[0].inventories
            assert root.traits == {"HW_A", "CUSTOM_T"}
    root, gpu = overlay(ProviderConfig((general, entry(uuid=GPU))), HOST, UUIDS).description.providers
    assert root.inventories.keys() == {"VCPU", "CUSTOM_A"} and gpu.traits == {"CUSTOM_T"}


def test_what_the_driver_reports_stays_the_drivers() -> None:
    """On the provider that has it, and on the one that it moved from."""
    inventory = {"CUSTOM_GPU": DescribedInventory(9), "CUSTOM_A": DescribedInventory(1)}
    for name in ("gpu", "node1"):
        laid = overlay(ProviderConfig((entry(name=name, inventories=inventory),)), HOST, UUIDS)
        (conflict,) = laid.conflicts
        assert conflict.startswith("a.yaml: providers[0].inventories.additional: ")
        assert f"reports CUSTOM_GPU on {name}" in conflict
        now = {each.name: each for each in laid.description.providers}[name]
        before = {each.name: each for each in HOST.providers}[name]
        assert now.inventories == {**before.inventories, "CUSTOM_A": DescribedInventory(1)}


def test_one_provider_by_name_and_by_uuid_is_a_conflict_and_a_strange_one_is_told() -> None:
    laid = overlay(
        ProviderConfig((entry(name="gpu"), entry(uuid=GPU, file="b.yaml"), entry(name="other"))), HOST, UUIDS
    )
    (conflict,) = laid.conflicts
    assert conflict.startswith("b.yaml: providers[0].identification") and "a.yaml" in conflict
    assert [each.name for each in laid.unmatched] == ["other"]
    assert overlay(ProviderConfig(), HOST, UUIDS).description is HOST

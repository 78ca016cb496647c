"""Reservations for what is in use: devices for one-time use, and devices that were reconfigured."""

from hypothesis import given
from hypothesis import strategies as st

from agent.device_names import ONE_TIME_USE
from agent.driver import MoveInstruction
from agent.providers.reserved import ReservedUsages, reserve_used
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.tree import Inventory, Provider, ProviderTree

CARD = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00"


def resolved(
    total: int, *, once: bool = True, device: str = "pci:0000:41:00.0", name: str = "CUSTOM_A"
) -> ResolvedDescription:
    traits = frozenset({ONE_TIME_USE} if once else ())
    tree = ProviderTree([Provider(CARD, "card", None, {name: Inventory(total, max_unit=total)}, traits)])
    units = {CARD: {name: tuple(map(str, range(total)))}}
    return ResolvedDescription(tree, OwnedProviders(), {CARD: device}, units)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.booleans())
def test_a_device_for_one_time_use_stays_reserved_from_its_first_use_on(uses: list[bool], once: bool) -> None:
    """A pass for each element: whether the device is in use then. The last pass's tree is Placement's."""
    description, current = resolved(1, once=once), ProviderTree()
    for number, in_use in enumerate(uses):
        used = {CARD: {"CUSTOM_A": 1}} if in_use else {}
        result = reserve_used(description, current, used)
        current = result.tree
        was_used = any(uses[: number + 1])
        assert current[CARD].inventories["CUSTOM_A"].reserved == (1 if once and was_used else 0)
        assert bool(result.problems) is (once and was_used and not in_use)


def test_an_operator_releases_a_device_for_one_time_use() -> None:
    description = resolved(1)
    current = reserve_used(description, ProviderTree(), {CARD: {"CUSTOM_A": 1}}).tree
    released = current.with_provider(resolved(1).tree[CARD])
    assert reserve_used(description, released, {}).tree[CARD].inventories["CUSTOM_A"].reserved == 0


def test_a_device_in_use_under_a_former_class_offers_nothing_of_its_new_one() -> None:
    description = resolved(4, once=False, name="CUSTOM_B")
    used = {CARD: {"CUSTOM_A": 1}}
    inventory = reserve_used(description, ProviderTree(), used).tree[CARD].inventories["CUSTOM_B"]
    assert inventory.capacity == 0
    moved = [MoveInstruction("card", {"CUSTOM_A": 1}, "card", becomes={"CUSTOM_A": "CUSTOM_B"})]
    assert reserve_used(description, ProviderTree(), used, moved).tree == description.tree
    assert reserve_used(description, ProviderTree(), {}).tree == description.tree
    host = resolved(4, once=False, name="CUSTOM_B", device="host")
    assert reserve_used(host, ProviderTree(), used).tree == host.tree


def test_only_usages_that_decide_a_reservation_call_for_another_pass() -> None:
    basis = ReservedUsages.of(resolved(1), {CARD: {"CUSTOM_A": 1, "VCPU": 2}})
    assert not basis.differs({CARD: {"CUSTOM_A": 1, "VCPU": 5}, "other": {"CUSTOM_A": 1}})
    assert basis.differs({CARD: {"CUSTOM_A": 0}}) and basis.differs({})
    assert not ReservedUsages.of(resolved(1, once=False), {}).differs({CARD: {"CUSTOM_A": 1}})

"""What is reserved for guests that use more than is held: enough, and no more than there is."""

from hypothesis import given
from hypothesis import strategies as st

from agent.providers.resolve import OwnedProvider, OwnedProviders
from agent.providers.unclaimed import UnheldUse, released, without_reservations
from agent.tree import Inventory, Provider, ProviderTree

OWNED = OwnedProviders({"host": OwnedProvider(frozenset({"VCPU"}))})


def tree(inventory: Inventory) -> ProviderTree:
    return ProviderTree([Provider("host", "host", None, {"VCPU": inventory, "FOREIGN": Inventory(9)})])


@given(
    st.integers(1, 50), st.integers(0, 50), st.sampled_from([0.5, 1.0, 1.5, 4.0, 16.0]), st.integers(0, 200)
)
def test_the_capacity_is_smaller_by_what_is_used(total: int, reserved: int, ratio: float, used: int) -> None:
    base = tree(Inventory(total, min(total, reserved), allocation_ratio=ratio))
    use = UnheldUse({"web1": {"host": {"VCPU": used, "FOREIGN": 1}}, "web2": {"elsewhere": {"VCPU": 1}}})
    reserving = use.reserve(base, OWNED)
    before, after = base["host"].inventories["VCPU"], reserving["host"].inventories["VCPU"]
    assert after.capacity <= max(0, before.capacity - used) and after.reserved <= total
    assert after.capacity >= before.capacity - used - ratio - 1
    assert reserving["host"].inventories["FOREIGN"] == Inventory(9), "the agent does not write it"
    assert without_reservations(reserving, base) == base
    assert without_reservations(reserving, base, {("host", "VCPU")}) == reserving
    assert released(after, used, before.reserved).reserved >= before.reserved


@given(
    total=st.integers(1, 50),
    reserved=st.integers(0, 50),
    ratio=st.sampled_from([0.5, 1.0, 1.5, 4.0, 16.0]),
    mine=st.integers(0, 100),
    others=st.integers(0, 100),
    told=st.booleans(),
)
def test_what_is_taken_back_for_one_guest_leaves_what_the_others_need(
    total: int, reserved: int, ratio: float, mine: int, others: int, *, told: bool
) -> None:
    """Also where each amount alone is rounded up, and where Placement was not told of the others yet."""
    base = tree(Inventory(total, min(total, reserved), allocation_ratio=ratio))
    rest = {"web2": {"host": {"VCPU": others}}}
    now = UnheldUse({"web1": {"host": {"VCPU": mine}}, **(rest if told else {})}).reserve(base, OWNED)
    least = UnheldUse(rest).reserve(base, OWNED)["host"].inventories["VCPU"]
    assert released(now["host"].inventories["VCPU"], mine, least.reserved) == least


def test_a_notice_does_not_say_that_the_agent_reserves_what_others_write() -> None:
    host = tree(Inventory(8))
    own, foreign, pool = {"VCPU": 2}, {"VCPU": 2, "FOREIGN": 1}, {"DISK_GB": 5}
    for amounts, told in (
        ({"host": own}, "agent reserves it, so that no "),
        ({"host": foreign}, "agent cannot reserve 1 FOREIGN on host, as it does not write"),
        ({"pool": pool}, "agent cannot reserve 5 DISK_GB on provider pool, as it does not write"),
    ):
        for column in ("claimed", "unclaimed"):
            use = UnheldUse({"web1": amounts}, **{column: {"web1": amounts}})
            (notice,) = use.notices(host, OWNED, ())
            assert told in notice and ("reserves it" in notice) is ("reserves it" in told)

"""What a guest uses against what it has, where the amounts alone do not tell."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kits.audit import CONSUMER, claimed, observe, running
from kits.tracker import UNITS, uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.use_difference import UseDifference, use_difference
from agent.driver import Guest, UsedUnit

ROOT = uuid_of("host")


def compare(claims: dict[str, Claim], guest: Guest) -> UseDifference | None:
    observation = observe(claims, guests=(guest,))
    return use_difference(observation.row(guest.uuid, observation.place), observation.place)


def test_the_siblings_of_isolated_cpus_are_claimed_and_never_used() -> None:
    ((consumer, claim),) = claimed({"PCPU": 2}).items()
    used, withheld = claim.units[ROOT]["PCPU"]
    cell = PlacedCell(0, 0, {0: int(used)}, frozenset({int(withheld)}), 4, 1024)
    guest = running(consumer, UsedUnit("PCPU", used, "host"), PCPU=1)
    difference = compare({consumer: replace(claim, cells=(cell,))}, guest)
    assert difference is not None and difference.size == 0
    without_cells = compare({consumer: claim}, guest)
    assert without_cells is not None and without_cells.less == {"PCPU": 1}
    assert without_cells.missing == {"PCPU": (withheld,)}


def test_a_unit_made_in_place_of_the_claimed_one_is_no_other_unit() -> None:
    ((consumer, claim),) = claimed({"SRIOV_NET_VF": 1}).items()
    (unit,) = claim.units[uuid_of("nic0")]["SRIOV_NET_VF"]
    other = next(vf for vf in UNITS[uuid_of("nic0")]["SRIOV_NET_VF"] if vf != unit)
    guest = running(consumer, UsedUnit("SRIOV_NET_VF", other, "nic0"), SRIOV_NET_VF=1)
    made = replace(claim, makings={unit: {"parent": "0000:41:00.0", "type": "t"}})
    difference = compare({consumer: made}, guest)
    assert difference is not None and difference.size == 0
    plain = compare({consumer: claim}, guest)
    assert plain is not None and plain.swapped == {"SRIOV_NET_VF": ((unit,), (other,))}


def test_pages_that_the_claims_cells_count_are_not_more() -> None:
    claims = claimed({"MEMORY_MB": 1024})
    difference = compare(claims, running(CONSUMER, MEMORY_MB=1024, CUSTOM_HUGEPAGES_2048KIB=512))
    assert difference is not None and difference.size == 0


def test_nothing_is_compared_while_a_claim_is_in_doubt_or_nothing_is_known() -> None:
    guest = running(CONSUMER, VCPU=4)
    for state in (ClaimState.CLAIMING, ClaimState.RELEASING):
        assert compare(claimed({"VCPU": 2}, state=state), guest) is None
    assert compare(claimed({"VCPU": 2}), running(CONSUMER)) is None
    assert compare({}, guest) is None
    assert compare(claimed({"VCPU": 2}), running(str(UUID(int=5)), VCPU=4)) is None


def test_a_guest_without_its_gpu_uses_less_also_where_the_card_names_no_units() -> None:
    assert not any("VGPU" in classes for classes in UNITS.values())
    difference = compare(claimed({"VCPU": 2, "VGPU": 1, "DISK_GB": 1}), running(CONSUMER, VCPU=2))
    assert difference is not None and difference.less == {"VGPU": 1}


def test_bandwidth_that_no_driver_sees_in_a_guest_is_not_less() -> None:
    bandwidth = "NET_BW_EGR_KILOBIT_PER_SEC"
    (claim,) = claimed({"VCPU": 2}).values()
    allocations = {ROOT: {"VCPU": 2, bandwidth: 1000, "CUSTOM_LICENSE": 1}}
    difference = compare({CONSUMER: replace(claim, allocations=allocations)}, running(CONSUMER, VCPU=2))
    assert difference is not None and difference.size == 0


AMOUNTS = st.fixed_dictionaries(
    {"VCPU": st.integers(1, 8), "MEMORY_MB": st.integers(1, 2000), "VGPU": st.integers(1, 4)},
    optional={"SRIOV_NET_VF": st.integers(1, 2)},
)


@given(AMOUNTS, AMOUNTS)
def test_more_and_less_are_the_differences_of_the_totals(has: dict[str, int], uses: dict[str, int]) -> None:
    difference = compare(claimed(has), running(CONSUMER, **uses))
    assert difference is not None
    more: dict[str, int] = {}
    for amounts in difference.more.values():
        for name, amount in amounts.items():
            more[name] = more.get(name, 0) + amount
    names = has.keys() | uses.keys()
    expected = {name: uses.get(name, 0) - has.get(name, 0) for name in names}
    assert more == {name: amount for name, amount in expected.items() if amount > 0}
    assert difference.less == {name: -amount for name, amount in expected.items() if amount < 0}

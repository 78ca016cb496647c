"""The claims that a reshape left behind go where the driver's move instructions lead."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import MoveInstruction
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.laws import Instruction, Relocation
from agent.reshape.relocate import follow_inventory, relocate_records
from agent.shapes import Allocations
from agent.tree import Inventory, Provider, ProviderTree

TREE = ProviderTree(
    [
        Provider("root", "root", None, {"DISK_GB": Inventory(100)}),
        *(
            Provider(
                cell,
                cell,
                "root",
                {"VCPU": Inventory(8), "PCPU": Inventory(4), "MEMORY_MB": Inventory(1000)},
            )
            for cell in ("cell0", "cell1")
        ),
    ]
)


def lead(source: str, target: str, **amounts: int) -> Instruction:
    return Instruction(MoveInstruction(source, amounts, target), source, target)


LEADS = tuple(lead("root", cell, VCPU=8, PCPU=4, MEMORY_MB=1000) for cell in ("cell0", "cell1"))
EXACT = ExactUnits({"cell0": {"PCPU": ("0", "1", "2", "3")}, "cell1": {"PCPU": ("4", "5", "6", "7")}})


def claim(consumer: str, amounts: Mapping[str, int], *units: str) -> Claim:
    exact = {"root": {"PCPU": units}} if units else {}
    return Claim(
        consumer,
        ClaimState.CLAIMED,
        ClaimRequest(consumer, ()),
        {"root": {"DISK_GB": 5, **amounts}},
        exact,
    )


def followed(*claims: Claim, held: Mapping[str, Allocations] | None = None) -> dict[str, Allocations]:
    records = {each.consumer: each for each in claims}
    relocations = follow_inventory(HostRecords(records, {}, EXACT), held or {}, LEADS, TREE)
    changed = relocate_records(relocations, records, {}, EXACT).claims
    return {each.consumer: each.allocations for each in changed}


def test_what_has_no_units_goes_along_with_what_has() -> None:
    web = claim("web", {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 500}, "4", "5")
    there = {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 500}}
    assert followed(web) == {"web": there}


@pytest.mark.parametrize("holds", [True, False])
def test_a_claim_goes_as_a_whole_to_a_target_with_room(holds: bool) -> None:
    """Beside what Placement holds there, and beside what other claims have there."""
    there = {"cell0": {"MEMORY_MB": 600}}
    other = replace(claim("other", {}), allocations={} if holds else there)
    found = followed(
        claim("web", {"VCPU": 1, "MEMORY_MB": 500}), other, held={"other": there} if holds else {}
    )
    assert found == {"web": {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 1, "MEMORY_MB": 500}}}


def test_without_room_it_goes_where_the_least_is_missing() -> None:
    held = {"a": {"cell0": {"MEMORY_MB": 900}}, "b": {"cell1": {"MEMORY_MB": 700}}}
    found = followed(claim("web", {"MEMORY_MB": 500}), held=held)
    assert found == {"web": {"root": {"DISK_GB": 5}, "cell1": {"MEMORY_MB": 500}}}


@pytest.mark.parametrize("held", [400, 500])
def test_a_claim_goes_where_placement_holds_what_is_left_of_it(held: int) -> None:
    """Another client took the rest. It goes along as a whole, also where another target has more room."""
    web = claim("web", {"VCPU": 2, "MEMORY_MB": 500})
    there = {"web": {"cell1": {"MEMORY_MB": held}}, "other": {"cell1": {"VCPU": 8}}}
    place = {"root": {"DISK_GB": 5}, "cell1": {"VCPU": 2, "MEMORY_MB": 500}}
    assert followed(web, held=there) == {"web": place}


def test_what_is_left_of_a_claim_may_have_another_class() -> None:
    """The copy's driver counts CPUs as shared that this host's claim has as dedicated ones."""
    becomes = MoveInstruction("root", {"PCPU": 4}, "cell1", becomes={"PCPU": "VCPU"})
    leads = (*LEADS, Instruction(becomes, "root", "cell1"))
    web = claim("web", {"PCPU": 2, "MEMORY_MB": 500})
    held = {"web": {"cell1": {"VCPU": 2}}}
    found = follow_inventory(HostRecords({"web": web}), held, leads, TREE)
    assert set(found) == {
        Relocation("web", "PCPU", 2, "root", "cell1", "VCPU"),
        Relocation("web", "MEMORY_MB", 500, "root", "cell1", "MEMORY_MB"),
    }


def test_a_class_of_which_nothing_is_left_goes_along_as_it_is() -> None:
    """Although it could become one of which something is left."""
    becomes = MoveInstruction("root", {"PCPU": 4}, "cell1", becomes={"PCPU": "VCPU"})
    leads = (*LEADS, Instruction(becomes, "root", "cell1"))
    web = claim("web", {"VCPU": 1, "PCPU": 2}, "4", "5")
    found = follow_inventory(
        HostRecords({"web": web}, {}, EXACT), {"web": {"cell1": {"VCPU": 1}}}, leads, TREE
    )
    assert set(found) == {
        Relocation("web", "PCPU", 2, "root", "cell1", "PCPU"),
        Relocation("web", "VCPU", 1, "root", "cell1", "VCPU"),
    }


def test_what_is_left_of_a_claim_counts_once() -> None:
    """There is room for both beside each other, and none on the other cell."""
    webs = (claim("web1", {"MEMORY_MB": 500}), claim("web2", {"MEMORY_MB": 500}))
    held = {"web1": {"cell0": {"MEMORY_MB": 500}}, "other": {"cell1": {"MEMORY_MB": 600}}}
    place = {"root": {"DISK_GB": 5}, "cell0": {"MEMORY_MB": 500}}
    assert followed(*webs, held=held) == {"web1": place, "web2": place}


@pytest.mark.parametrize("held", [{"MEMORY_MB": 600}, {"MEMORY_MB": 500, "VCPU": 1}])
def test_a_consumer_that_holds_something_else_does_not_follow(held: dict[str, int]) -> None:
    """Where it went is Placement's to say."""
    assert followed(claim("web", {"MEMORY_MB": 500}), held={"web": {"cell0": held}}) == {}


def test_claims_stay_where_a_migration_may_hold_their_place() -> None:
    web = claim("web", {"MEMORY_MB": 500})
    move = Move("m", "web", MoveKind.RESIZE, MoveRole.SOURCE, MoveState.BEGUN, web, None, web.allocations)
    for records in (
        HostRecords({"web": web}, {"m": move}),
        HostRecords({"web": web}, {}, EXACT, {"web": ""}),
        HostRecords({"web": replace(web, state=ClaimState.RELEASING)}),
    ):
        assert follow_inventory(records, {}, LEADS, TREE) == ()


def test_without_a_target_a_claim_stays() -> None:
    assert followed(claim("web", {"CUSTOM_GONE": 1})) == {}


def test_a_claim_goes_back_from_providers_that_are_gone() -> None:
    tree = ProviderTree([Provider("root", "root", None, {"MEMORY_MB": Inventory(1000)})])
    leads = (lead("cell0", "root", MEMORY_MB=1000),)
    web = replace(claim("web", {}), allocations={"cell0": {"MEMORY_MB": 500}})
    found = follow_inventory(HostRecords({"web": web}), {}, leads, tree)
    assert found == (Relocation("web", "MEMORY_MB", 500, "cell0", "root", "MEMORY_MB"),)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"VCPU": st.integers(1, 9), "PCPU": st.integers(1, 3), "MEMORY_MB": st.integers(1, 900)}
        ),
        max_size=4,
    )
)
def test_nothing_is_lost_or_added_on_the_way_and_all_of_it_has_an_inventory(
    many: list[dict[str, int]],
) -> None:
    found = followed(*(claim(f"web{number}", amounts) for number, amounts in enumerate(many)))
    assert len(found) == len(many)
    for number, amounts in enumerate(many):
        there: Counter[str] = Counter()
        for uuid, part in found[f"web{number}"].items():
            assert part.keys() <= TREE[uuid].inventories.keys()
            there.update(part)
        assert there == {"DISK_GB": 5, **amounts}

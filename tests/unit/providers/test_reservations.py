"""What the agent reserves: classes that exclude each other, devices for one-time use, guests beyond what is
held.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.fit import ProviderIndex, fit
from agent.claims.request import ClaimRequest, RequestGroup
from agent.device_names import ONE_TIME_USE
from agent.driver import Guest, GuestState, MoveInstruction, UsedUnit
from agent.providers.reservations import (
    ReservedUsages,
    UnheldUse,
    excluding_class,
    released,
    reserve_excluded,
    reserve_used,
    room,
    without_reservations,
)
from agent.providers.resolve import OwnedProvider, OwnedProviders, ResolvedDescription
from agent.shapes import Usages
from agent.tree import Inventory, Provider, ProviderTree

WHOLE_OR_PARTS = (frozenset({"PF"}), frozenset({"VF"}))
TYPES = (frozenset({"SMALL", "ALSO_SMALL"}), frozenset({"BIG"}))
PORT = {"PF": 1, "VF": 8}
GPU = {"SMALL": 16, "ALSO_SMALL": 16, "BIG": 4}


def test_a_card_is_given_whole_or_in_parts() -> None:
    assert room(WHOLE_OR_PARTS, PORT, {}) == {"PF": 1, "VF": 8}
    assert room(WHOLE_OR_PARTS, PORT, {"PF": 1}) == {"PF": 0, "VF": 0}
    assert room(WHOLE_OR_PARTS, PORT, {"VF": 3}) == {"PF": 0, "VF": 5}
    assert excluding_class(WHOLE_OR_PARTS, "VF", {"PF": 1}) == "PF"
    assert excluding_class(WHOLE_OR_PARTS, "VF", {"VF": 1}) is None
    assert excluding_class(WHOLE_OR_PARTS, "BANDWIDTH", {"PF": 1}) is None, "which is in no way"


def test_types_of_one_size_share_the_card_others_exclude_each_other() -> None:
    assert room(TYPES, GPU, {"SMALL": 5}) == {"SMALL": 11, "ALSO_SMALL": 11, "BIG": 0}
    assert room(TYPES, GPU, {"SMALL": 5, "ALSO_SMALL": 11}) == {"SMALL": 0, "ALSO_SMALL": 0, "BIG": 0}
    assert room(TYPES, GPU, {"BIG": 1}) == {"SMALL": 0, "ALSO_SMALL": 0, "BIG": 3}


@given(
    used=st.fixed_dictionaries({}, optional={name: st.integers(0, total) for name, total in GPU.items()}),
    reserved=st.integers(0, 4),
)
def test_placement_offers_what_there_is_room_for_and_never_less_than_is_in_use(
    used: dict[str, int], reserved: int
) -> None:
    inventories = {name: Inventory(total, reserved) for name, total in GPU.items()}
    inventories["OTHER"] = Inventory(5)
    provider = Provider("gpu", "gpu", None, inventories)
    tree = ProviderTree([provider])
    found = reserve_excluded(tree, {"gpu": TYPES, "gone": TYPES}, {"gpu": used})["gpu"].inventories
    left = room(TYPES, {name: total - reserved for name, total in GPU.items()}, used)
    assert found["OTHER"] == Inventory(5)
    for name, each in found.items():
        if name in GPU:
            assert each.total == GPU[name]
            assert each.reserved >= reserved
            assert each.capacity - used.get(name, 0) <= left[name]
            if used.get(name, 0) <= GPU[name] - reserved:
                assert each.capacity - used.get(name, 0) == left[name]
    if not any(used.values()):
        assert reserve_excluded(tree, {"gpu": TYPES}, {}) == tree


def asked(*wanted: tuple[str, int]) -> ClaimRequest:
    groups = tuple(RequestGroup(str(n), {name: amount}) for n, (name, amount) in enumerate(wanted))
    return ClaimRequest("6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01", groups, "none")


def test_one_request_is_not_given_what_excludes_itself() -> None:
    def card(name: str) -> Provider:
        return Provider(name, name, "host", {each: Inventory(n) for each, n in PORT.items()})

    def fits(request: ClaimRequest, used: Usages, *cards: str) -> bool:
        tree = ProviderTree([Provider("host", "host"), *map(card, cards)])
        host = ProviderIndex.of(tree, "host", dict.fromkeys(cards, WHOLE_OR_PARTS))
        return fit(request, host, used, {}).fits

    assert fits(asked(("PF", 1)), {}, "a") and fits(asked(("VF", 4), ("VF", 4)), {}, "a")
    assert not fits(asked(("PF", 1), ("VF", 1)), {}, "a")
    assert fits(asked(("PF", 1), ("VF", 1), ("VF", 7)), {}, "a", "b")
    assert not fits(asked(("PF", 1), ("VF", 1), ("VF", 8)), {}, "a", "b")
    assert not fits(asked(("PF", 1)), {"a": {"VF": 1}}, "a")
    assert not fits(asked(("VF", 1), ("VF", 7)), {"a": {"VF": 1}}, "a")


CARDS = ("nic", "gpu")
UNITS = {
    "nic": {"PF": ("pf",), "VF": tuple(f"vf{n}" for n in range(8))},
    "gpu": {name: tuple(f"slot{n}" for n in range(total)) for name, total in GPU.items()},
}
WAYS = {"nic": WHOLE_OR_PARTS, "gpu": TYPES}
TREE = ProviderTree(
    [
        Provider("host", "host"),
        Provider("nic", "nic", "host", {name: Inventory(total) for name, total in PORT.items()}),
        Provider("gpu", "gpu", "host", {name: Inventory(total) for name, total in GPU.items()}),
    ]
)


def book_of_cards() -> Book:
    made = Book()
    made.refresh(ProviderIndex.of(TREE, "host", WAYS), {}, UNITS)
    return made


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([*PORT, *GPU]), st.integers(0, 5)), max_size=30
    ),
    guest=st.sampled_from([None, ("PF", "pf"), ("VF", "vf3"), ("BIG", "slot1"), ("SMALL", "slot9")]),
)
def test_whatever_is_claimed_and_released_no_card_is_given_in_two_ways(
    steps: list[tuple[int, str, int]], guest: tuple[str, str] | None
) -> None:
    """Placement's numbers lag behind all the time: the book alone keeps the ways apart."""
    book = book_of_cards()
    if guest is not None:
        book.observe_guests(
            [Guest("guest", "guest", GuestState.RUNNING, {}, (UsedUnit(*guest, "pci:card"),))]
        )
    for number, name, amount in steps:
        consumer = f"00000000-0000-4000-8000-{number:012}"
        book.remove(consumer)
        if amount:
            request = ClaimRequest(consumer, (RequestGroup("", {name: amount}),))
            found = book.fit(request)
            if found.fits:
                book.put(Claim(consumer, ClaimState.CLAIMED, request, found.allocations, found.units))
        for card in CARDS:
            used = {
                name: sum(claim.allocations.get(card, {}).get(name, 0) for claim in book.claims.values())
                for name in UNITS[card]
            }
            held = [
                unit
                for claim in book.claims.values()
                for us in claim.units.get(card, {}).values()
                for unit in us
            ]
            if guest is not None and guest[0] in UNITS[card]:
                used[guest[0]] = used.get(guest[0], 0) + 1
                held.append(guest[1])
            assert len(held) == len(set(held)), "one unit, one owner"
            in_use = [way for way in WAYS[card] if any(used.get(each, 0) for each in way)]
            assert len(in_use) < 2
            for way in in_use:
                assert sum(used.get(each, 0) for each in way) <= max(len(UNITS[card][each]) for each in way)


def test_a_unit_that_is_asked_for_by_name_is_no_exception() -> None:
    book = book_of_cards()
    whole, part = (
        ClaimRequest(f"00000000-0000-4000-8000-{number:012}", (RequestGroup("", {name: 1}),))
        for number, name in enumerate(("PF", "VF"))
    )
    book.restrict(part.consumer, Restriction({"nic": {"VF": ("vf3",)}}))
    assert book.fit(part).units == {"nic": {"VF": ("vf3",)}}
    found = book.fit(whole)
    book.put(Claim(whole.consumer, ClaimState.CLAIMED, whole, found.allocations, found.units))
    assert not book.fit(part).fits


def test_a_unit_that_is_asked_for_by_name_is_nobody_elses_as_another_type() -> None:
    book = book_of_cards()
    other, named = asked(("ALSO_SMALL", 2)), replace(asked(("SMALL", 1)), consumer="by name")
    found = book.fit(other)
    assert found.units == {"gpu": {"ALSO_SMALL": ("slot0", "slot1")}}
    book.put(Claim(other.consumer, ClaimState.CLAIMED, other, found.allocations, found.units))
    book.restrict(named.consumer, Restriction({"gpu": {"SMALL": ("slot1",)}}))
    assert not book.fit(named).fits
    book.restrict(named.consumer, Restriction({"gpu": {"SMALL": ("slot2",)}}))
    assert book.fit(named).units == {"gpu": {"SMALL": ("slot2",)}}


def test_types_that_share_a_card_get_different_units_of_it_in_one_claim() -> None:
    book = book_of_cards()
    found = book.fit(asked(("SMALL", 3), ("ALSO_SMALL", 2)))
    units = [unit for exact in found.units["gpu"].values() for unit in exact]
    assert len(set(units)) == len(units) == 5


def test_a_guest_that_moves_away_counts_once() -> None:
    """Its migration holds what it uses."""
    book = book_of_cards()
    request, other = asked(("SMALL", 8)), replace(asked(("SMALL", 8)), consumer="another consumer")
    found = book.fit(request)
    book.put(Claim("migration", ClaimState.CLAIMED, request, found.allocations, found.units))
    used = tuple(UsedUnit("SMALL", unit, "pci:card") for unit in found.units["gpu"]["SMALL"])
    book.observe_guests([Guest(request.consumer, "guest", GuestState.RUNNING, {}, used)])
    book.follow_moves({request.consumer: "migration"})
    assert book.fit(other).fits


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


def test_a_notice_names_no_command_that_does_nothing_for_a_guest_with_a_claim() -> None:
    """`gate claim-running` leaves it out, and whether `audit --heal` has a repair depends on the case."""
    more = {"web1": {"host": {"VCPU": 2}}}
    (alone,) = UnheldUse(more, unclaimed=more).notices(tree(Inventory(8)), OWNED, ())
    assert "Claim it (`plimsoll gate claim-running`), or take it away" in alone and "--heal" not in alone
    use = UnheldUse(more, unclaimed=more, claiming=frozenset({"web1"}))
    (notice,) = use.notices(tree(Inventory(8)), OWNED, ())
    assert "claim-running" not in notice and "whether `plimsoll audit --heal`" in notice


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

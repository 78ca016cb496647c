"""Classes of one device that exclude each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.exclusion import rival, room, shared_out
from agent.claims.fit import Amounts, Host, fit
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Inventory, Provider, ProviderTree

WHOLE_OR_PARTS = (frozenset({"PF"}), frozenset({"VF"}))
TYPES = (frozenset({"SMALL", "ALSO_SMALL"}), frozenset({"BIG"}))
CARD = {"PF": 1, "VF": 8}
GPU = {"SMALL": 16, "ALSO_SMALL": 16, "BIG": 4}


def test_a_card_is_given_whole_or_in_parts() -> None:
    assert room(WHOLE_OR_PARTS, CARD, {}) == {"PF": 1, "VF": 8}
    assert room(WHOLE_OR_PARTS, CARD, {"PF": 1}) == {"PF": 0, "VF": 0}
    assert room(WHOLE_OR_PARTS, CARD, {"VF": 3}) == {"PF": 0, "VF": 5}
    assert rival(WHOLE_OR_PARTS, "VF", {"PF": 1}) == "PF"
    assert rival(WHOLE_OR_PARTS, "VF", {"VF": 1}) is None
    assert rival(WHOLE_OR_PARTS, "BANDWIDTH", {"PF": 1}) is None, "which is in no way"


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
    found = shared_out(tree, {"gpu": TYPES, "gone": TYPES}, {"gpu": used})["gpu"].inventories
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
        assert shared_out(tree, {"gpu": TYPES}, {}) == tree


def asked(*wanted: tuple[str, int]) -> ClaimRequest:
    groups = tuple(RequestGroup(str(n), {name: amount}) for n, (name, amount) in enumerate(wanted))
    return ClaimRequest("6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01", groups, "none")


def test_one_request_is_not_given_what_excludes_itself() -> None:
    def card(name: str) -> Provider:
        return Provider(name, name, "host", {each: Inventory(n) for each, n in CARD.items()})

    def fits(request: ClaimRequest, used: Amounts, *cards: str) -> bool:
        tree = ProviderTree([Provider("host", "host"), *map(card, cards)])
        host = Host.of(tree, "host", dict.fromkeys(cards, WHOLE_OR_PARTS))
        return fit(request, host, used, {}).fits

    assert fits(asked(("PF", 1)), {}, "a") and fits(asked(("VF", 4), ("VF", 4)), {}, "a")
    assert not fits(asked(("PF", 1), ("VF", 1)), {}, "a")
    assert fits(asked(("PF", 1), ("VF", 1), ("VF", 7)), {}, "a", "b")
    assert not fits(asked(("PF", 1), ("VF", 1), ("VF", 8)), {}, "a", "b")
    assert not fits(asked(("PF", 1)), {"a": {"VF": 1}}, "a")
    assert not fits(asked(("VF", 1), ("VF", 7)), {"a": {"VF": 1}}, "a")

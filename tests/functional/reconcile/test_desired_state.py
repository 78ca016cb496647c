"""The state that a pass is to reach: the described tree, the moves that are due, and what is parked."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.driver import Description, MoveInstruction
from agent.errors import UsageError
from agent.providers.resolve import resolve, uuid_of_new
from agent.reconcile.desired_state import Desired, UndoneReshapes, desired_state
from agent.reshape.claimed_units import ExactUnits, HostRecords
from agent.reshape.receipt import UndoneReceipts

TO_GPU = MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}})
GONE = MoveInstruction(HOST, {"VGPU": 1}, HOST, {uuid_of("b"): {"VGPU": 1}})


@pytest.fixture
def world(world: World) -> World:
    world.see(host(VGPU=5))
    world.hold("a", node1={"VGPU": 1})
    world.tap.calls.clear()
    return world


def desired(world: World, *moves: MoveInstruction, records: HostRecords | None = None) -> Desired:
    """Of a host whose units are all on one card now."""
    description = Description((host(), provider("gpu0", VGPU=4)), moves)
    current = world.tree()
    resolved = resolve(description, current, world.journal.owned(), ROOT)
    return desired_state(
        world.client, description, current, resolved, UndoneReceipts(), records or HostRecords()
    )


def test_without_moves_nothing_is_asked(world: World) -> None:
    state = desired(world)
    assert state.due == () and state.tree.by_name("gpu0") is not None
    assert world.tap.calls == []


def test_a_move_that_placement_does_not_show_is_due(world: World) -> None:
    state = desired(world, TO_GPU)
    assert [instruction.move for instruction in state.due] == [TO_GPU]
    assert "VGPU" not in state.tree[ROOT].inventories
    assert (state.undoes, state.undone_notices, state.parked_notices) == (None, (), ())
    assert world.tap.calls == [f"GET /resource_providers/{ROOT}/allocations"]


@pytest.mark.parametrize("has_followed", [False, True], ids=["its unit moves", "it has moved already"])
def test_what_the_driver_says_of_a_consumer_whose_claim_says_it_better_is_left_out(
    world: World, has_followed: bool
) -> None:
    """By its exact unit, or by a record that is newer than Placement."""
    card = uuid_of_new(ROOT, "gpu0")
    on = card if has_followed else ROOT
    units = {} if has_followed else {ROOT: {"VGPU": ("mdev",)}}
    consumer = uuid_of("a")
    claim = Claim(consumer, ClaimState.CLAIMED, ClaimRequest(consumer, ()), {on: {"VGPU": 1}}, units)
    exact = ExactUnits({card: {"VGPU": ("mdev",)}} if units else {})
    state = desired(world, TO_GPU, records=HostRecords({consumer: claim}, exact=exact))
    assert [instruction.move for instruction in state.due] == [replace(TO_GPU, consumers={})]


def test_units_without_a_device_are_parked_and_named(world: World) -> None:
    consumer = world.hold("b", node1={"VGPU": 1})
    state = desired(world, TO_GPU, GONE)
    assert state.tree[ROOT].inventories["VGPU"].total == 1
    (notice,) = state.parked_notices
    assert consumer in notice
    assert state.owned.get(ROOT).classes >= {"VGPU"}


@dataclass(frozen=True)
class Done:
    """A receipt of a reshape that moved `slots`, from the one to the other."""

    id: str
    slots: str
    undoes: str | None = None

    @property
    def source_slots(self) -> set[str]:
        return {self.slots[0]}

    @property
    def target_slots(self) -> set[str]:
        return {self.slots[1]}


FIRST, LATER, OTHER = Done("first", "ab"), Done("later", "bc"), Done("other", "xy")
UNDID_LATER = Done("undid later", "cb", "later")


@pytest.mark.parametrize(
    ("done", "undone", "undo", "after"),
    [
        ([FIRST], ("first",), None, ()),
        ([FIRST], (), "first", ("first",)),
        ([FIRST, OTHER], ("other",), "first", ("other", "first")),
        ([FIRST], (), "none", "There is no receipt 'none'"),
        ([FIRST], ("first",), "first", "is already undone"),
        ([FIRST, LATER], (), "first", "The reshape later has moved what first had moved: undo later first"),
        ([FIRST, LATER], (), "later", ("later",)),
        ([LATER, FIRST], (), "first", ("first",)),
        ([FIRST, OTHER], (), "first", ("first",)),
        ([FIRST, LATER], ("later",), "first", ("later", "first")),
        ([FIRST, LATER, UNDID_LATER], (), "first", ("first",)),
        ([FIRST, LATER, UNDID_LATER], ("later",), "undid later", ()),
        ([FIRST, LATER, UNDID_LATER], ("first", "later"), "undid later", ("first",)),
        ([FIRST, LATER, UNDID_LATER], (), "undid later", "undid later, which has been done again since"),
    ],
)
def test_a_reshape_is_undone_unless_a_later_one_has_moved_on_what_it_moved(
    done: list[Done], undone: tuple[str, ...], undo: str | None, after: tuple[str, ...] | str
) -> None:
    receipts = {receipt.id: receipt for receipt in done}
    remembered: list[tuple[str, ...]] = []
    journal: Any = SimpleNamespace(
        reshapes=lambda done: receipts if done else {},
        undone_reshapes=lambda: undone,
        remember_undone_reshapes=lambda ids: remembered.append(tuple(ids)),
    )
    reshapes = UndoneReshapes(journal)
    assert (reshapes.ids(), reshapes.receipts()) == (undone, tuple(done))
    assert reshapes.with_ids(["first", "swept"]).receipts == tuple(each for each in done if each is FIRST)
    if isinstance(after, str):
        with pytest.raises(UsageError, match=after):
            reshapes.ids_after(undo)
    else:
        assert reshapes.ids_after(undo) == after
        reshapes.set_ids(after)
        assert remembered == ([after] if after != undone else []), "written where it changes"

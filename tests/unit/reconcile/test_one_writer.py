"""Who is taken for a second agent: machines that start, reboot, are cloned and restored, on one root."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.reshape import ROOT

from agent.errors import AnotherWriter, PlacementConflict
from agent.placement.client import PlacementClient
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.reconcile import one_writer
from agent.reconcile.one_writer import Writer, writer_mark, writer_of
from agent.reconcile.reconciler import Reconciler
from agent.state.identity import WriterRecord
from agent.state.journal import Journal
from agent.tree import Provider, ProviderTree

VERIFY_S = 100
SHARED = "11111111-1111-4111-8111-111111111111"


@dataclass
class World:
    """The root provider in Placement, and the time."""

    root: Provider = field(
        default_factory=lambda: Provider(ROOT, "node1", aggregates=frozenset({SHARED}), generation=0)
    )
    now: float = 0.0

    def put_aggregates(self, uuid: str, generation: int, aggregates: frozenset[str]) -> int:
        if generation != self.root.generation:
            raise PlacementConflict("somebody wrote")
        self.root = replace(self.root, aggregates=frozenset(aggregates), generation=generation + 1)
        return generation + 1

    @property
    def tree(self) -> ProviderTree:
        return ProviderTree([self.root])


@dataclass
class Machine:
    """One machine with its disk; `record` is what its journal has."""

    world: World
    name: str
    record: WriterRecord = field(default_factory=WriterRecord)
    boot: int = 0
    verify_s: int = VERIFY_S
    cards: tuple[str, ...] = ()
    running: Writer | None = None

    def writer(self) -> WriterRecord:
        return self.record

    def remember_writer(self, record: WriterRecord) -> None:
        self.record = record

    @property
    def mark(self) -> str:
        return writer_mark(ROOT, f"{self.name} {self.boot}")

    def start(self) -> None:
        self.running = Writer(
            cast("Journal", self),
            cast("PlacementClient", self.world),
            ROOT,
            f"{self.name} {self.boot}",
            self.verify_s,
            lambda: self.world.now,
            cards=self.cards,
        )

    def reboot(self) -> None:
        self.boot += 1
        self.start()

    def cloned(self, name: str) -> Machine:
        return Machine(self.world, name, self.record)

    def look(self) -> str:
        """A pass; why the host is closed after it, empty if it is open."""
        assert self.running is not None
        tree = self.world.tree
        try:
            self.running.check(tree)
        except AnotherWriter as error:
            return error.message
        described = ResolvedDescription(tree, OwnedProviders(), {}, {}, (), ())
        wanted = self.running.mark(described, tree).tree[ROOT].aggregates
        if wanted != self.world.root.aggregates:
            self.world.put_aggregates(ROOT, self.world.root.generation or 0, wanted)
            self.running.check(self.world.tree)
        assert SHARED in self.world.root.aggregates, "what others wrote stays"
        return ""

    def settle(self) -> None:
        """Alone for as long as another one would need to be noticed."""
        for _ in range(4):
            self.look()
            self.world.now += VERIFY_S
        assert self.look() == ""

    def takes(self) -> bool:
        """Whether a repair may take something away."""
        assert self.running is not None
        return self.running.holds_back(self.world.tree) is None


@pytest.fixture
def one() -> Machine:
    machine = Machine(World(), "one")
    machine.start()
    assert machine.look() == ""
    machine.settle()
    return machine


def test_a_restart_and_a_reboot_are_no_second_agent(one: Machine) -> None:
    before = one.world.root
    one.start()
    assert one.look() == "" and one.takes()
    assert one.world.root == before, "a restart writes nothing"
    one.reboot()
    assert one.look() == "", "open at once"
    assert not one.takes(), "it may be a clone"
    one.settle()
    assert one.takes() and one.world.root.aggregates == {SHARED, one.mark}


@pytest.mark.parametrize("what", ["the state directory", "Placement"])
def test_a_copy_from_before_a_reboot_is_no_second_agent_for_longer_than_one_would_need(
    one: Machine, what: str
) -> None:
    record, root = one.record, one.world.root
    one.reboot()
    one.settle()
    if what == "Placement":
        one.world.root = root
        one.start()
    else:
        one.record = record
        one.reboot()
    told = one.look()
    assert "was restored from a copy" in told and "plimsoll adopt" in told
    assert one.running is not None and one.running.waits()
    one.world.now += VERIFY_S
    assert one.look()
    one.world.now += VERIFY_S
    assert one.look() == "", "it opens by itself"
    assert not one.running.waits()
    assert not one.takes() and one.running.problem, "its records are older, which an operator has to judge"
    one.start()
    assert one.look() == "" and not one.takes(), "a restart is no decision"
    one.record = WriterRecord(one.record.own, takes_over=True)  # plimsoll adopt
    one.start()
    assert one.look() == "" and one.look() == ""
    assert one.takes() and one.running.problem is None


def test_a_placement_from_before_a_reboot_under_a_running_agent_is_no_second_agent(one: Machine) -> None:
    root = one.world.root
    one.reboot()
    one.settle()
    one.world.root = root
    assert one.look()
    one.settle()


def test_without_verifications_nobody_answers_so_only_an_operator_decides(one: Machine) -> None:
    record = one.record
    one.reboot()
    one.settle()
    one.record, one.verify_s = record, 0
    one.reboot()
    for _ in range(9):
        assert "Another Plimsoll agent" in one.look()
        one.world.now += VERIFY_S


def test_who_never_wrote_as_the_host_does_not_disturb_who_does(one: Machine) -> None:
    newcomer = Machine(one.world, "newcomer")
    newcomer.start()
    before = one.world.root
    assert "Another Plimsoll agent" in newcomer.look()
    assert one.world.root == before and one.look() == "" and one.takes()


def test_a_third_one_leaves_the_marks_of_two_that_have_met(one: Machine) -> None:
    two, third = one.cloned("two"), one.cloned("third")
    two.start()
    for machine in (two, one, two, one):
        machine.look()
        one.world.now += VERIFY_S
    assert one.world.root.aggregates == {SHARED, one.mark, two.mark}
    one.reboot()  # its journal has the mark from before, and no machine answers now
    for machine in (third, one):
        machine.start()
        assert "Another Plimsoll agent writes" in machine.look()
        assert {two.mark, machine.mark} < one.world.root.aggregates


def test_a_challenge_whose_write_met_a_conflict_is_sent_again(
    one: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = one.record
    one.reboot()
    one.settle()
    one.record = record
    one.reboot()

    def conflict(*_: object) -> int:
        raise PlacementConflict("somebody wrote")

    with monkeypatch.context() as patch:
        patch.setattr(World, "put_aggregates", conflict)
        assert "waits whether" in one.look()
    assert "waits whether" in one.look()
    assert one.world.root.aggregates == {SHARED, one.mark}
    one.settle()


@pytest.fixture
def carded(one: Machine) -> Machine:
    one.cards = ("52:54:00:00:00:01", "52:54:00:00:00:02")
    one.start()
    assert one.look() == "" and one.record.cards == one.cards, "also of a journal from before it kept them"
    return one


def test_a_copy_that_starts_while_the_first_machine_is_down_is_no_reboot_of_it(carded: Machine) -> None:
    two = carded.cloned("two")
    two.cards = ("52:54:00:00:00:09",)
    before = carded.world.root
    two.start()
    for _ in range(9):
        told = two.look()
        assert "from another machine" in told and "52:54:00:00:00:01" in told and "plimsoll adopt" in told
        assert two.running is not None and two.running.waits() and not two.takes()
        two.world.now += VERIFY_S
    assert carded.world.root == before, "it leaves no trace"
    carded.start()
    assert carded.look() == "" and carded.takes()


def test_a_disk_in_another_chassis_goes_on_once_an_operator_says_so(carded: Machine) -> None:
    moved = carded.cloned("the other chassis")
    moved.cards = ("52:54:00:00:00:09",)
    moved.record = WriterRecord(moved.record.own, takes_over=True)  # plimsoll adopt
    moved.start()
    assert moved.look() == "" and moved.look() == ""
    assert moved.takes() and moved.record.cards == moved.cards
    carded.start()
    assert carded.look(), "the first machine is the second agent now"


@pytest.mark.parametrize(
    "cards",
    [
        ("52:54:00:00:00:02", "52:54:00:00:00:03"),  # one was replaced
        (),  # their drivers are not loaded yet
    ],
)
def test_a_machine_with_one_of_its_cards_or_none_to_be_seen_is_the_same(
    carded: Machine, cards: tuple[str, ...]
) -> None:
    carded.cards, before = cards, carded.record.cards
    carded.reboot()
    assert carded.look() == "" and carded.look() == ""
    carded.cards = before[:1]
    carded.reboot()
    assert carded.look() == "", "a card that was late still counts"


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "stop", "reboot", "clone", "restore", "wait"]), st.integers(0, 2)),
    max_size=12,
)


class Fleet:
    """Up to three machines that are copies of one, and what their operators do."""

    def __init__(self) -> None:
        self.world = World()
        self.machines = [Machine(self.world, "m0")]
        self.machines[0].start()
        self.copies = [WriterRecord()]
        self.wait()

    @property
    def running(self) -> list[Machine]:
        return [machine for machine in self.machines if machine.running is not None]

    def wait(self, rounds: int = 6) -> dict[str, str]:
        """Each that runs looks about once in VERIFY_S; {machine: why it is closed}."""
        told: dict[str, str] = {}
        for round_ in range(rounds):
            for number, machine in enumerate(self.running):
                self.world.now += VERIFY_S / 3
                told[machine.name] = machine.look()
                self.copies.append(machine.record)
                if (round_ + number) % 2:
                    told[machine.name] = machine.look()
            self.world.now += VERIFY_S / 3
        return told

    def do(self, step: Step) -> None:
        what, number = step
        machine = self.machines[min(number, len(self.machines) - 1)]
        match what:
            case "start":
                machine.start()
            case "stop":
                machine.running = None
            case "reboot":
                machine.reboot()
            case "clone" if len(self.machines) < 3:
                self.machines.append(machine.cloned(f"m{len(self.machines)}"))
                self.machines[-1].start()
            case "restore":
                older = [copy for copy in self.copies if copy.own]
                machine.record = older[number % len(older)] if older else machine.record
                machine.start()
        if what == "wait" or number:
            self.wait(1 + number)


@given(STEPS)
def test_of_two_that_run_none_is_open_after_each_has_looked_a_few_times(steps: list[Step]) -> None:
    fleet = Fleet()
    for step in steps:
        fleet.do(step)
    told = fleet.wait(9)
    if len(told) > 1:
        assert all("Another Plimsoll agent writes" in why for why in told.values()), told
        before = fleet.world.root
        fleet.wait(2)
        assert fleet.world.root == before, "and each has shown its mark"
        assert all(not machine.takes() for machine in fleet.running)


@given(STEPS)
def test_one_that_runs_alone_opens_unless_two_have_met(steps: list[Step]) -> None:
    """One machine after the other: before one starts, the others have stopped."""
    fleet = Fleet()
    for step in steps:
        for machine in fleet.machines:
            machine.running = None
        fleet.do(step if step[0] != "stop" else ("start", step[1]))
        if fleet.running:
            fleet.wait()
    for machine in fleet.machines:
        machine.running = None
    fleet.machines[0].start()
    assert fleet.wait() == {"m0": ""}


@pytest.mark.parametrize(
    ("place", "cards", "waits"),
    [
        ("here", ["aa", "bb"], False),
        ("here", ["cc"], True),
        ("here", None, False),
        (None, None, True),
    ],
)
def test_an_agent_of_a_remote_placement_knows_the_machine_by_its_cards(
    monkeypatch: pytest.MonkeyPatch, place: str | None, cards: list[str] | None, *, waits: bool
) -> None:
    """Those of this machine, unless it runs elsewhere; unknown ones prove nothing."""
    monkeypatch.setattr(one_writer, "place_of", lambda _: "this machine")
    monkeypatch.setattr(one_writer, "network_cards", lambda: ["dd"])
    settings: Any = SimpleNamespace(
        placement=SimpleNamespace(kind="remote"), state_path=None, association_refresh_s=VERIFY_S
    )
    machine = Machine(World(), "x", WriterRecord(("mark",), cards=("aa",)))
    journal, client = cast("Journal", machine), cast("PlacementClient", machine.world)
    writer = writer_of(settings, journal, client, ROOT, place, cards)
    assert writer is not None and writer.waits() is waits
    settings.placement.kind = "embedded"
    assert writer_of(settings, journal, client, ROOT, place, cards) is None, "no other agent writes there"


@pytest.mark.parametrize(("verify_s", "settles_s"), [(100, 200.0), (0, 2.0 * one_writer.SETTLES_S)])
def test_two_verifications_without_an_answer_settle_a_mark(verify_s: int, settles_s: float) -> None:
    machine = Machine(World(), "x", WriterRecord(("mark",), settled=False), verify_s=verify_s)
    machine.start()
    assert machine.running is not None
    machine.world.now = settles_s - 1
    assert machine.running.waits() and machine.running.holds_back() is not None
    assert machine.running.holds_back(taking=False) is None
    nothing: Any = None
    reconciler = Reconciler(nothing, nothing, nothing, nothing, ROOT, writer=machine.running)
    assert reconciler.waits_for_another() and not reconciler.is_contested, "it claims and releases"
    machine.world.now = settles_s
    assert not machine.running.waits() and machine.running.holds_back() is None

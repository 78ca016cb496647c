"""Every operation of every kind of move, for tests that interrupt it, with what placement holds then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from agent.errors import ClaimConflict, PlacementUnavailable, UnknownConsumer
from agent.moves.states import MoveKind
from kits.examples import THOROUGH
from kits.moves import DISK, INSTANCE, MIGRATION, ON_A, ON_B, OTHER_MIGRATION, SMALL, World, asks

ACROSS = (MoveKind.COLD_MIGRATE, MoveKind.RESIZE, MoveKind.LIVE_MIGRATE, MoveKind.EVACUATE)
GROWN = {**SMALL, "VCPU": 3}
GROWN_ON_A = {**ON_A, "a": {**ON_A["a"], "VCPU": 3}}

AT_A = {INSTANCE: {**ON_A, **DISK}}
AT_B = {INSTANCE: {**ON_B, **DISK}}
BETWEEN = {INSTANCE: {**ON_B, **DISK}, MIGRATION: ON_A}
GROWING = {INSTANCE: {**GROWN_ON_A, **DISK}, MIGRATION: ON_A}
GROWN_AT_A = {INSTANCE: {**GROWN_ON_A, **DISK}}
HEALED = {INSTANCE: {"a": {"VCPU": 2, "MEMORY_MB": 64}}}

Placed = dict[str, dict[str, dict[str, int]]]


@dataclass(frozen=True)
class Operation:
    """`does` is what dies, on the agent of that name; `before` and `after` is what placement holds.

    `midway` is where it may stop for good, until somebody asks again. Without `before`, what was there before
    is somebody else's doing, and no agent knows of it yet. `guests` shows the drivers what is there after a
    death, too.
    """

    name: str
    agent: str
    prepare: Callable[[World], object]
    does: Callable[[World], object]
    before: Placed | None
    after: Placed
    midway: Placed | None = None
    guests: Callable[[World], object] = lambda _: None


def claimed(world: World) -> None:
    world.a.tracker.claim(asks(**SMALL))


def begin(kind: MoveKind) -> Callable[[World], object]:
    return lambda world: world.b.tracker.begin_move(asks(**SMALL), kind, MIGRATION)


def begun(kind: MoveKind, *, noticed: bool = False) -> Callable[[World], object]:
    def prepare(world: World) -> None:
        claimed(world)
        begin(kind)(world)
        if noticed:
            world.settle()

    return prepare


def resize_here(world: World) -> object:
    return world.a.tracker.begin_move(asks(**GROWN), MoveKind.RESIZE, MIGRATION)


def resized_here(world: World) -> None:
    claimed(world)
    resize_here(world)


def rebuild(world: World) -> object:
    return world.a.tracker.begin_move(replace(asks(**SMALL), name="rebuilt"), MoveKind.REBUILD, MIGRATION)


def rebuilt(world: World) -> None:
    claimed(world)
    rebuild(world)


def doubled(world: World) -> None:
    claimed(world)
    world.schedule(INSTANCE, **ON_A, **ON_B, **DISK)


def begun_by_others(world: World) -> None:
    claimed(world)
    world.schedule(INSTANCE, **ON_B, **DISK)
    world.schedule(MIGRATION, "MIGRATION", **ON_A)


def confirmed(world: World) -> None:
    begun(MoveKind.COLD_MIGRATE, noticed=True)(world)
    world.b.tracker.confirm_move(MIGRATION)


def confirmed_unnoticed(world: World) -> None:
    begun(MoveKind.COLD_MIGRATE)(world)
    world.b.tracker.confirm_move(MIGRATION)


def reverted(world: World) -> None:
    begun(MoveKind.COLD_MIGRATE, noticed=True)(world)
    world.b.tracker.revert_move(MIGRATION)


def confirm(name: str) -> Callable[[World], object]:
    return lambda world: getattr(world, name).tracker.confirm_move(MIGRATION)


def revert(name: str) -> Callable[[World], object]:
    return lambda world: getattr(world, name).tracker.revert_move(MIGRATION)


def release(name: str) -> Callable[[World], object]:
    return lambda world: getattr(world, name).tracker.release(INSTANCE)


def look(name: str) -> Callable[[World], object]:
    return lambda world: getattr(world, name).look()


def claim(world: World) -> object:
    return world.a.tracker.claim(asks(**SMALL))


def heal(name: str) -> Callable[[World], object]:
    """As an operator has it done: every repair of every finding."""
    return lambda world: getattr(world, name).auditor.audit(heal_own=True, heal_all=True)


def leaked(world: World) -> None:
    """Deleted by others, while the agent was away."""
    claimed(world)
    world.raw.delete_allocations(INSTANCE)


def edited(world: World) -> None:
    claimed(world)
    world.a.see(INSTANCE)
    world.schedule(INSTANCE, a={"VCPU": 1}, pool={"DISK_GB": 200})


def unclaimed(world: World) -> None:
    world.a.uses[INSTANCE] = {"VCPU": 2, "MEMORY_MB": 64}
    world.a.see(INSTANCE)


def left_over(world: World) -> None:
    """Somebody wrote back what the migration held, after the end."""
    confirmed(world)
    world.settle()
    world.schedule(MIGRATION, "MIGRATION", **ON_A)


def deserted(world: World) -> None:
    """The instance was deleted past both agents; only the source looks."""
    begun(MoveKind.EVACUATE, noticed=True)(world)
    world.raw.delete_allocations(INSTANCE)


def doubled_and_there(world: World) -> None:
    """By an old control plane, whose move is over: the guest is at b, which claimed for it."""
    doubled(world)
    world.b.tracker.claim(asks(**SMALL))
    for agent, guests in ((world.a, ()), (world.b, (INSTANCE,))):
        agent.see(*guests)


def in_doubt_and_moved(world: World) -> None:
    with world.away(world.a, after=True), suppress(PlacementUnavailable):
        claimed(world)
    begin(MoveKind.COLD_MIGRATE)(world)


def overtaken(world: World) -> None:
    """A second move took the instance back to a, which knew nothing of it, and was confirmed."""
    world.schedule(INSTANCE, **ON_A, **DISK)
    begin(MoveKind.COLD_MIGRATE)(world)
    world.a.refresh()
    world.a.tracker.begin_move(asks(**SMALL), MoveKind.COLD_MIGRATE, OTHER_MIGRATION)
    world.a.tracker.confirm_move(OTHER_MIGRATION)


def left_behind(world: World) -> None:
    """The guest of an evacuated instance was still on the host that came back, and is gone now."""
    world.a.see(INSTANCE)
    begun(MoveKind.EVACUATE, noticed=True)(world)
    world.b.tracker.confirm_move(MIGRATION)
    world.a.look()
    world.a.see()


def abort(kind: MoveKind) -> Callable[[World], object]:
    def does(world: World) -> None:
        with suppress(RuntimeError), world.b.tracker.begin_move(asks(**SMALL), kind, MIGRATION):
            raise RuntimeError("the copy failed")

    return does


def abort_here(world: World) -> None:
    with suppress(RuntimeError), world.a.tracker.begin_move(asks(**GROWN), MoveKind.RESIZE, MIGRATION):
        raise RuntimeError("no such image")


def abort_build(world: World) -> None:
    with suppress(RuntimeError), world.a.tracker.claim(asks(**SMALL)):
        raise RuntimeError("no such image")


def scheduled(world: World) -> None:
    """By somebody who has chosen, and has yet to tell the agent."""
    world.schedule(INSTANCE, **ON_A, **DISK)


def elsewhere_on_a(world: World) -> None:
    claimed(world)
    world.schedule(INSTANCE, a={"VCPU": 2, "PCPU": 2, "MEMORY_MB": 1024}, pool={"DISK_GB": 200})


def unrecorded(world: World) -> None:
    """The agent placed it, and its record of that is lost."""
    world.schedule(INSTANCE, **ON_A, **DISK)
    seen_at_a(world)


def seen_at_a(world: World) -> None:
    world.a.see(INSTANCE)


def asked_while_away(
    prepare: Callable[[World], object], ask: Callable[[World], object]
) -> Callable[[World], object]:
    """Asked for while placement was away, so it is journaled."""

    def prepared(world: World) -> None:
        prepare(world)
        with world.away():
            ask(world)

    return prepared


def begin_in_doubt(world: World) -> None:
    """Placement did as it was asked, and then nobody heard from it."""
    claimed(world)
    with world.b.tap.gone_from("POST"), suppress(PlacementUnavailable):
        begin(MoveKind.COLD_MIGRATE)(world)


def deliver(name: str) -> Callable[[World], object]:
    return lambda world: getattr(world, name).tracker.deliver()


OPERATIONS = (
    *(Operation(f"begin {kind}", "b", claimed, begin(kind), AT_A, BETWEEN) for kind in ACROSS),
    *(Operation(f"confirm {kind}", "b", begun(kind), confirm("b"), BETWEEN, AT_B) for kind in ACROSS),
    *(Operation(f"revert {kind}", "b", begun(kind), revert("b"), BETWEEN, AT_A) for kind in ACROSS),
    *(
        Operation(f"release in {kind}", "b", begun(kind, noticed=True), release("b"), BETWEEN, {})
        for kind in ACROSS
    ),
    *(Operation(f"abort {kind}", "b", claimed, abort(kind), AT_A, AT_A, BETWEEN) for kind in ACROSS),
    Operation("abort same_host_resize", "a", claimed, abort_here, AT_A, AT_A, GROWING),
    Operation("begin doubled", "b", doubled, begin(MoveKind.EVACUATE), None, BETWEEN),
    Operation("begin adopted", "b", begun_by_others, begin(MoveKind.COLD_MIGRATE), None, BETWEEN),
    Operation("source links", "a", begun(MoveKind.COLD_MIGRATE), look("a"), BETWEEN, BETWEEN),
    Operation("source learns of confirm", "a", confirmed, look("a"), AT_B, AT_B),
    Operation("source learns late", "a", confirmed_unnoticed, look("a"), AT_B, AT_B),
    Operation("source learns of revert", "a", reverted, look("a"), AT_A, AT_A),
    *(
        Operation(f"{ask} at the source", "a", begun(MoveKind.COLD_MIGRATE, noticed=True), end, BETWEEN, at)
        for ask, end, at in (("confirm", confirm("a"), AT_B), ("revert", revert("a"), AT_A))
    ),
    Operation("begin same_host_resize", "a", claimed, resize_here, AT_A, GROWING),
    Operation("confirm same_host_resize", "a", resized_here, confirm("a"), GROWING, GROWN_AT_A),
    Operation("revert same_host_resize", "a", resized_here, revert("a"), GROWING, AT_A),
    Operation("release in same_host_resize", "a", resized_here, release("a"), GROWING, {}),
    Operation("begin rebuild", "a", claimed, rebuild, AT_A, AT_A),
    Operation("confirm rebuild", "a", rebuilt, confirm("a"), AT_A, AT_A),
    Operation("revert rebuild", "a", rebuilt, revert("a"), AT_A, AT_A),
    Operation("release in rebuild", "a", rebuilt, release("a"), AT_A, {}),
    Operation("build", "a", lambda _: None, claim, {}, AT_A),
    Operation("abort a build", "a", lambda _: None, abort_build, {}, {}, AT_A),
    Operation("adopt a claim", "a", scheduled, claim, None, AT_A),
    Operation("release", "a", claimed, release("a"), AT_A, {}),
    Operation("undo a begin in doubt", "b", begin_in_doubt, deliver("b"), AT_A, AT_A),
    *(
        Operation(
            f"deliver a {word}",
            "b",
            asked_while_away(begun(MoveKind.COLD_MIGRATE, noticed=True), ask),
            deliver("b"),
            at,
            at,
        )
        for word, ask, at in (
            ("confirm", confirm("b"), AT_B),
            ("revert", revert("b"), AT_A),
            ("release", release("b"), {}),
        )
    ),
    Operation("source links a claim in doubt", "a", in_doubt_and_moved, look("a"), BETWEEN, BETWEEN),
    Operation("overtaken", "b", overtaken, look("b"), None, AT_A),
    Operation("guest leaves", "a", left_behind, look("a"), AT_B, AT_B),
    Operation("heal a leaked claim", "a", leaked, heal("a"), None, {}),
    Operation("heal amounts", "a", edited, heal("a"), None, AT_A),
    Operation("heal a wrong provider", "a", elsewhere_on_a, heal("a"), None, AT_A),
    Operation("heal a stuck release", "a", asked_while_away(claimed, release("a")), heal("a"), None, {}),
    Operation("heal an orphan", "a", scheduled, heal("a"), None, {}),
    Operation("heal a lost record", "a", unrecorded, heal("a"), None, AT_A, guests=seen_at_a),
    Operation("heal an unclaimed instance", "a", unclaimed, heal("a"), None, HEALED, guests=unclaimed),
    Operation("heal a stale migration", "a", left_over, heal("a"), None, AT_B),
    Operation("heal a deserted move", "a", deserted, heal("a"), None, {}),
    Operation("heal a doubled allocation", "a", doubled_and_there, heal("a"), None, AT_B),
)

_ENDS = ("confirm", "revert", "release in", "abort")
_ALIKE = {f"{ask} {kind}" for at, ask in enumerate(_ENDS) for kind in ACROSS if kind is not ACROSS[at]}
INTERRUPTED = tuple(each for each in OPERATIONS if THOROUGH or each.name not in _ALIKE)
"""What is interrupted at every boundary. Of a move between two hosts the kind matters only when it begins, so
each begins, and of each way to an end one kind is taken; `./dev test-long` takes all."""


def again(world: World, operation: Operation) -> None:
    """Whoever asked asks again, as it got no answer."""
    try:
        operation.does(world)
    except UnknownConsumer:
        assert operation.after == {}
    except ClaimConflict:
        assert operation.name in ("source links",)
    world.settle()


def units_held(world: World) -> object:
    claim = world.a.tracker.claim_of(INSTANCE)
    return claim.units if claim and claim.request.resources == SMALL else None

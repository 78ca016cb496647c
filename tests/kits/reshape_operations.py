"""A reshape there, back and undone, as tests cut it off."""

from __future__ import annotations

from agent.driver import MoveInstruction
from kits.reshape import HOST, World, host, provider, uuid_of
from kits.tracker import request

OWN = uuid_of("own")


FLAT = (host(VGPU=8),)


NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))


THERE = (
    MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {}),
    MoveInstruction(HOST, {"VGPU": 4}, "gpu1", {uuid_of("a"): {"VGPU": 1}}),
)


BACK = tuple(MoveInstruction(gpu, {"VGPU": 4}, HOST) for gpu in ("gpu0", "gpu1"))


ON_HOST = {"a": {HOST: {"VGPU": 1}}, OWN: {HOST: {"VGPU": 2, "VCPU": 1}}}


ON_CARDS = {"a": {"gpu1": {"VGPU": 1}}, OWN: {HOST: {"VCPU": 1}, "gpu0": {"VGPU": 2}}}


SAMPLE = {"there": (20, 26, 33, 34, 36), "back": (30, 54), "undo": (4, 33)}


def prepare(world: World, operation: str) -> None:
    """A consumer of a scheduler's and one of the agent's own hold VGPU on the root, or on cards already."""
    world.see(*FLAT)
    world.hold("a", node1={"VGPU": 1})
    world.tracker.claim(request(OWN, VGPU=2, VCPU=1))
    if operation != "there":
        does(world, "there")


def does(world: World, operation: str) -> None:
    report = world.see(*FLAT, moves=BACK) if operation == "back" else world.see(*NESTED, moves=THERE)
    assert (report.error, report.pending) == (None, None)
    receipts = world.journal.reshapes(done=True)
    if operation == "undo" and len(receipts) == 1:
        world.ask(*receipts)

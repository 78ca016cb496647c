"""Small trees, instructions and allocations of reshapes, for tests of the pure room."""

from collections.abc import Collection, Mapping, Sequence

from hypothesis import strategies as st

from agent.driver import MoveInstruction
from agent.reshape import plan
from agent.reshape.laws import Reshape, resolve_instructions
from agent.shapes import Allocations
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "00000000-0000-0000-0000-000000000001"
GPU = [f"00000000-0000-0000-0000-0000000000a{n}" for n in range(8)]
PF = "00000000-0000-0000-0000-0000000000b0"
Case = tuple[int, int, list[MoveInstruction], dict[str, dict[str, dict[str, int]]]]
"""GPUs, VGPUs of each, the moves, {consumer: {provider: {class: amount}}}"""


def consumer(number: int) -> str:
    return f"10000000-0000-0000-0000-{number:012d}"


def flat(vgpus: int, **more: Inventory) -> ProviderTree:
    return ProviderTree(
        [Provider(ROOT, "host", None, {"VCPU": Inventory(64), "VGPU": Inventory(vgpus), **more})]
    )


def nested(gpus: int, each: int, **inventories: Inventory) -> ProviderTree:
    children = [Provider(GPU[n], f"gpu{n}", ROOT, {"VGPU": Inventory(each)}) for n in range(gpus)]
    pf = [Provider(PF, "pf", ROOT, inventories)] if inventories else []
    return ProviderTree([Provider(ROOT, "host", None, {"VCPU": Inventory(64)}), *children, *pf])


def to_gpus(gpus: int, each: int) -> list[MoveInstruction]:
    return [MoveInstruction("host", {"VGPU": each}, f"gpu{n}") for n in range(gpus)]


def plan_reshape(
    current: ProviderTree,
    desired: ProviderTree,
    moves: Sequence[MoveInstruction],
    held: Mapping[str, Allocations],
    *,
    unheld: Mapping[str, Allocations] | None = None,
    strangers: Collection[str] = (),
    may_grow: bool = False,
) -> Reshape:
    instructions = resolve_instructions(moves, current, desired)
    return plan.plan_reshape(
        current, desired, instructions, held, unheld=unheld, strangers=strangers, may_grow=may_grow
    )


@st.composite
def hosts(draw: st.DrawFn) -> tuple[int, int, list[MoveInstruction], dict[str, dict[str, dict[str, int]]]]:
    """A flat host in use, the nested one it becomes, and instructions that tell some of the owners."""
    gpus, each = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    held: dict[str, dict[str, dict[str, int]]] = {}
    told: list[dict[str, dict[str, int]]] = [{} for _ in range(gpus)]
    for number in range(draw(st.integers(0, 10))):
        amount = draw(st.integers(1, 3))
        held[consumer(number)] = {ROOT: {"VCPU": 1, "VGPU": amount}}
        if draw(st.booleans()):
            told[draw(st.integers(0, gpus - 1))][consumer(number)] = {"VGPU": amount}
    moves = [MoveInstruction("host", {"VGPU": each}, f"gpu{n}", told[n]) for n in range(gpus)]
    return gpus, each, moves, held

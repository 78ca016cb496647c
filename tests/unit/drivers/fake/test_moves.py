"""The move instructions that the fake driver derives from its host."""

from dataclasses import replace

import pytest

from agent.driver import Guest, GuestState, HostSettings, MoveInstruction, UsedUnit
from drivers.fake import FakeHost, Gpu, cell
from drivers.fake.describe import describe_host

CARD = Gpu("0000:42:00.0", total=4)
GUEST = Guest(
    uuid="a0000000-0000-4000-8000-000000000001",
    name="one",
    state=GuestState.RUNNING,
    resources={"PCPU": 1, "MEMORY_MB": 512, "VGPU": 1},
    units=(UsedUnit("PCPU", "2", "host"), UsedUnit("VGPU", "u1", "pci:0000:42:00.0")),
)
HOST = FakeHost(
    (cell(0, frozenset({0, 1}), 1024), cell(1, frozenset({2, 3}), 1024)), gpus=(CARD,), guests=(GUEST,)
)
PINNED = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2}))
DEVICE = "n_pci_0000:42:00.0"


def moves(host: FakeHost, settings: HostSettings = PINNED) -> tuple[MoveInstruction, ...]:
    return describe_host(host, settings, "n").moves


def test_a_device_moves_from_the_root_with_the_guests_that_use_it() -> None:
    instruction = MoveInstruction("n", {"VGPU": 4}, DEVICE, {GUEST.uuid: {"VGPU": 1}})
    assert instruction in moves(HOST)


def test_a_flat_device_moves_back_to_the_root() -> None:
    assert MoveInstruction(DEVICE, {"VGPU": 4}, "n") in moves(replace(HOST, flat_devices=True))


def test_a_cell_takes_the_guests_that_are_pinned_to_it() -> None:
    amounts = {"PCPU": 1, "MEMORY_MB": 1024}
    consumers = {GUEST.uuid: {"PCPU": 1, "MEMORY_MB": 512}}
    instruction = MoveInstruction("n", amounts, "n_numa1", consumers)
    assert instruction in moves(replace(HOST, report_numa=True))


@pytest.mark.parametrize(
    ("settings", "instruction"),
    [
        (PINNED, MoveInstruction("n", {"VCPU": 1}, "n", {GUEST.uuid: {"VCPU": 1}}, {"VCPU": "PCPU"})),
        (HostSettings(), MoveInstruction("n", {"PCPU": 4}, "n", None, {"PCPU": "VCPU"})),
    ],
    ids=["dedicated", "shared"],
)
def test_cpus_change_their_class_with_the_cpu_sets(
    settings: HostSettings, instruction: MoveInstruction
) -> None:
    assert instruction in moves(HOST, settings)


def test_instructions_of_the_host_file_take_the_place_of_derived_ones() -> None:
    own = MoveInstruction("a", {"VGPU": 1}, "b")
    assert moves(replace(HOST, moves=(own,))) == (own,)

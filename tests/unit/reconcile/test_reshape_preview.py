"""What would be in use after a reshape."""

from kits.reshape_trees import GPU, ROOT, consumer, nested

from agent.reconcile.reshape_preview import usages_after
from agent.reshape.laws import Relocation


def test_usages_move_with_the_relocations_and_removed_providers_are_left_out() -> None:
    usages = {ROOT: {"VCPU": 4, "VGPU": 3}, GPU[0]: {"VGPU": 1}, GPU[7]: {"VGPU": 2}}
    relocations = [
        Relocation(consumer(1), "VGPU", 3, ROOT, GPU[1], "VGPU"),
        Relocation(consumer(2), "VGPU", 2, GPU[7], GPU[1], "VGPU"),
    ]
    assert usages_after(usages, relocations, nested(2, 8)) == {
        ROOT: {"VCPU": 4},
        GPU[0]: {"VGPU": 1},
        GPU[1]: {"VGPU": 5},
    }

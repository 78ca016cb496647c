"""What devices were before, and the moves that follow from it."""

from kits.libvirt_model import model, moves
from kits.libvirt_node import domain, domain_uuid

from agent.driver import DescribedProvider, HostSettings
from drivers.libvirt.describe.cards import DeviceHistory
from drivers.libvirt.describe.history import former_cells, record_cells, removed_cells


def test_cells_are_remembered_once_there_are_others() -> None:
    """So that what was counted in those that are gone, or in larger ones, comes to those that there are."""

    def seen(known: DeviceHistory, *cells: int) -> DeviceHistory:
        described = [DescribedProvider(f"x{cell}", "node1", device=f"numa:{cell}") for cell in cells]
        return record_cells(known, [DescribedProvider("node1"), *described])

    two = seen({"pci:x": ("VGPU",)}, 0, 1)
    assert [former_cells(cell, two) for cell in (0, 1)] == [(), ()]
    assert seen(two, 0, 1) is seen(two) is two, "the same, or not reported: nothing new"
    one = seen(two, 0)
    assert (former_cells(0, one), removed_cells(one, {0})) == ((1,), (1,))
    assert seen(one, 0) == one
    many = seen(one, *range(12))
    assert former_cells(0, many) == tuple(range(1, 12)), "in the order of their numbers"
    assert (many["pci:x"], removed_cells(many, range(12))) == (("VGPU",), ())


ON_CELL_1 = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"


MEMORY_ON_1 = "<numatune><memory mode='strict' nodeset='1'/></numatune>"


def test_moves_between_the_host_and_its_cells() -> None:
    guests = (domain(1, vcpus=2, inside=ON_CELL_1), domain(2, inside=MEMORY_ON_1), domain(3))
    nested, flat = model("boot", *guests, numa=True), model("boot", *guests)
    for cell in nested.topology.cells:
        (there,) = moves(nested, "node1", f"node1_numa{cell.id}")
        (back,) = moves(flat, f"node1_numa{cell.id}", "node1")
        assert there.moved_resources == {"VCPU": len(cell.cpus), "MEMORY_MB": cell.memory_mb}
        assert (back.moved_resources, back.consumers) == (there.moved_resources, None)
        assert there.consumers == (
            {
                domain_uuid(1): {"VCPU": 2, "MEMORY_MB": 512},
                domain_uuid(2): {"VCPU": 1, "MEMORY_MB": 512},
            }
            if cell.id == 1
            else {}
        ), "what floats is not said to be anywhere"


def test_a_guest_of_both_cells_has_its_dedicated_cpus_where_they_are() -> None:
    pins = "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
    host = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}))
    found = model("boot", domain(1, vcpus=2, inside=pins), numa=True, host=host)
    assert [unit.device for unit in found.guests[0].units] == ["numa:0", "numa:1"]
    for cell in (0, 1):
        plain, renamed = sorted(
            moves(found, "node1", f"node1_numa{cell}"), key=lambda move: len(move.becomes)
        )
        assert plain.consumers == {domain_uuid(1): {"PCPU": 1}}
        assert (renamed.becomes, renamed.consumers) == (
            {"VCPU": "PCPU"},
            {domain_uuid(1): {"VCPU": 1}},
        )


def test_a_guest_that_could_not_be_read_in_full_is_not_said_to_have_anything_anywhere() -> None:
    dedicated = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 3}))
    guest = domain(1, vcpus=2, inside=ON_CELL_1)
    for numa in (False, True):
        found = model("boot", guest, host=dedicated, numa=numa, problem="libvirt does not answer for it")
        assert not any(move.consumers for move in found.description.moves)


def test_moves_of_pinned_guests_to_dedicated_cpus_and_back() -> None:
    dedicated = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 3}))
    guest = domain(1, vcpus=2, inside=ON_CELL_1)
    (move,) = moves(model("boot", guest, host=dedicated), "node1", "node1")
    assert (move.moved_resources, move.becomes) == ({"VCPU": 2}, {"VCPU": "PCPU"})
    assert move.consumers == {domain_uuid(1): {"VCPU": 2}}
    (back,) = moves(model("boot", guest), "node1", "node1")
    assert (back.becomes, back.consumers) == ({"PCPU": "VCPU"}, None)

from agent.driver import DescribedProvider
from drivers.libvirt.describe.moves import DeviceHistory, former_cells, record_cells, removed_cells


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

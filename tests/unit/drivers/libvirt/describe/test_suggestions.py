"""What `plimsoll init` proposes for hosts as they were recorded."""

from kits.recorded_cards import A100, NIC0, T4, cards

from agent.config.proposal import own_suggestions, propose
from agent.driver import Cell, Topology
from drivers.libvirt.describe.options import suggestions

ONE = Topology((Cell(0, frozenset({0, 1}), 4096),), frozenset({0, 1}))
TWO = Topology((*ONE.cells, Cell(1, frozenset({2, 3}), 4096)), frozenset(range(4)))


def test_cells_are_reported_where_there_are_several() -> None:
    assert suggestions(ONE, ()) == ()
    (found,) = suggestions(TWO, ())
    assert (found.group, found.option, found.value, found.certain) == ("libvirt", "report_numa", "true", True)


def test_what_devices_are_for_is_left_to_the_operator() -> None:
    found = suggestions(ONE, cards("vfs").values())
    assert found and not any(each.certain for each in found)
    told = "\n".join(f"{each.option} = {each.value}  {each.why}" for each in found)
    assert "nvidia-11" in told and A100 in told
    assert f'{{"address": "{NIC0}", "physical_network": "physnet1"}}' in told
    assert "can have 7 virtual functions, and has 4" in told
    assert '"product_id": "1eb8"' in told and T4 in told


def test_the_functions_that_are_there_are_what_a_reboot_is_to_bring_back() -> None:
    (found,) = [each for each in suggestions(ONE, cards("vfs").values()) if each.option == "sriov_vfs"]
    assert f"{NIC0}=4" in found.value.split(", ") and not found.certain
    assert not any(each.option == "sriov_vfs" for each in suggestions(ONE, cards("boot").values()))


def test_a_proposal_reads_as_a_file() -> None:
    text = propose((*own_suggestions("node1", "libvirt", TWO), *suggestions(TWO, cards("vfs").values())))
    lines = text.splitlines()
    assert {"[DEFAULT]", "host = node1", "reserved_host_memory_mb = 512", "report_numa = true"} <= set(lines)
    assert any(line.startswith("#enabled_mdev_types = nvidia-") for line in lines)
    assert not any(len(line) > 110 for line in lines)

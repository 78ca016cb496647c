"""`unknown device`: a guest uses what this host does not offer."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, in_state, observe, running
from kits.tracker import VFS

from agent.audit.findings.unknown_device import UnknownDevice
from agent.driver import GuestState, UsedUnit

LOST = "0000:99:00.1"


def test_only_units_of_a_class_whose_units_the_driver_names_are_unknown() -> None:
    guest = running(
        CONSUMER,
        UsedUnit("SRIOV_NET_VF", LOST, "nic9"),
        UsedUnit("SRIOV_NET_VF", VFS[0], "nic0"),
        UsedUnit("VGPU", "mdev", "gpu9"),
    )
    (finding,) = UnknownDevice().judge_host(observe(guests=(guest,)))
    assert finding.subject == LOST and finding.repair == ()
    assert finding.evidence == {"guest": CONSUMER, "class": "SRIOV_NET_VF", "device": "nic9"}


def test_a_guest_that_could_not_be_read_or_is_shut_off_is_not_compared() -> None:
    guest = running(CONSUMER, UsedUnit("SRIOV_NET_VF", LOST, "nic9"))
    for unclear in (replace(guest, problem="odd XML"), in_state(GuestState.SHUTOFF, guest)):
        assert [*UnknownDevice().judge_host(observe(guests=(unclear,)))] == []

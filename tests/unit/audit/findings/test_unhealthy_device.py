"""`unhealthy device`: a device that is withheld because it is not well."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, claimed, observe, running
from kits.tracker import VFS

from agent.audit.findings.unhealthy_device import UnhealthyDevice
from agent.driver import UsedUnit
from agent.providers.device_health import DeviceHealth, HealthState, Symptom

ILL = DeviceHealth(VFS[0], HealthState.UNHEALTHY, causes=frozenset({Symptom.NO_ANSWER}), since=7.0)
GUEST = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01"


def test_the_finding_names_the_symptom_and_who_has_the_device_by_claim_or_use() -> None:
    guest = running(GUEST, UsedUnit("SRIOV_NET_VF", VFS[0], "nic0"))
    seen = observe(claimed({"SRIOV_NET_VF": 1}), guests=(guest,))
    (finding,) = UnhealthyDevice().judge_host(replace(seen, unhealthy={VFS[0]: ILL}))
    assert (finding.subject, finding.own, finding.repair) == (VFS[0], False, ())
    assert finding.evidence == {"symptoms": ["no answer"], "since": 7.0, "consumers": [CONSUMER, GUEST]}
    assert finding.reason.startswith(ILL.sentence) and f"{CONSUMER}, {GUEST} have it." in finding.reason


def test_a_device_that_nobody_has_is_found_as_well() -> None:
    (finding,) = UnhealthyDevice().judge_host(replace(observe(), unhealthy={VFS[0]: ILL}))
    assert finding.reason == ILL.sentence and finding.evidence["consumers"] == []
    assert [*UnhealthyDevice().judge_host(observe())] == []


def test_who_has_a_part_of_a_card_has_the_card() -> None:
    claims = claimed({"SRIOV_NET_VF": 1})
    (provider,) = claims[CONSUMER].units
    seen = replace(observe(claims), devices={"pci:0000:41:00.0": provider})
    card = replace(ILL, address="0000:41:00.0")
    (finding,) = UnhealthyDevice().judge_host(replace(seen, unhealthy={card.address: card}))
    assert finding.evidence["consumers"] == [CONSUMER]

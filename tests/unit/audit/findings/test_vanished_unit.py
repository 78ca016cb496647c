"""`vanished unit`: a claimed unit that the host does not have any more."""

from __future__ import annotations

from dataclasses import replace

from kits.audit import CONSUMER, claimed, observe, row_findings
from kits.tracker import UNITS, VFS, uuid_of

from agent.audit.findings.vanished_unit import VanishedUnit

NIC = uuid_of("nic0")
CLAIMS = claimed({"SRIOV_NET_VF": 2})


def test_each_unit_that_is_gone_is_named_with_its_consumer() -> None:
    assert row_findings(VanishedUnit(), observe(CLAIMS)) == []
    left = {**UNITS, NIC: {"SRIOV_NET_VF": VFS[:1]}}
    (finding,) = row_findings(VanishedUnit(), replace(observe(CLAIMS), offered=left))
    assert finding.subject == CONSUMER and finding.evidence["units"] == [VFS[1]]
    assert VFS[1] in finding.reason and not finding.repair


def test_a_unit_that_is_still_to_be_made_has_not_vanished() -> None:
    claim = replace(CLAIMS[CONSUMER], makings={vf: {"parent": "0000:41:00.0", "type": "t"} for vf in VFS})
    observation = replace(observe({CONSUMER: claim}), offered={})
    assert row_findings(VanishedUnit(), observation) == []

"""Answers of the local API: a claim with each group on the provider that serves it, findings, verdicts of
the gate.
"""

from agent.api.views import audit_view, claim_view, running_view
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.errors import DoesNotFit
from agent.tree import Provider, ProviderTree

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}
NICS = {"nic1": "CUSTOM_PHYSNET_RED", "nic2": "CUSTOM_PHYSNET_BLUE"}


def test_equal_amounts_without_units_are_shown_on_the_card_of_the_groups_network() -> None:
    tree = ProviderTree(
        [Provider("root", "root"), *(Provider(nic, nic, "root", {}, frozenset({NICS[nic]})) for nic in NICS)]
    )
    groups = tuple(RequestGroup(trait, BANDWIDTH, (frozenset({trait}),)) for trait in NICS.values())
    claim = Claim(
        CONSUMER, ClaimState.CLAIMED, ClaimRequest(CONSUMER, groups), dict.fromkeys(NICS, BANDWIDTH)
    )
    shown = {
        mapping["suffix"]: list(mapping["allocations"]) for mapping in claim_view(claim, tree)["mappings"]
    }
    assert shown == {trait: [nic] for nic, trait in NICS.items()}


FINDINGS = (
    Finding("leaked claim", "c1", "It is gone.", own=True),
    Finding("doubled", "c2", "It is twice here."),
)


def test_each_finding_has_the_outcome_of_its_repair() -> None:
    report = AuditReport(FINDINGS, healed=frozenset({0}), failed={1: "Placement refused it."})
    healed, failed = audit_view(report)["findings"]
    assert (healed["kind"], healed["own"], healed["healed"], healed["failed"]) == (
        "leaked claim",
        True,
        True,
        None,
    )
    assert (failed["healed"], failed["failed"], failed["repair"]) == (False, "Placement refused it.", [])


def test_a_guest_that_does_not_fit_is_among_the_refused() -> None:
    guest = Guest("c1", "web1", GuestState.RUNNING, {})
    view = running_view(((guest, DoesNotFit("It does not fit.")),))
    assert view == {
        "claimed": [],
        "refused": [{"consumer": "c1", "name": "web1", "sentence": "It does not fit."}],
    }

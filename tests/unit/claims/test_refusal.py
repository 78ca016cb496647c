"""The errors with which a claim is refused: their sentences, and the details for programs."""

from __future__ import annotations

from agent.claims.claim import Claim, ClaimState, Shortfall
from agent.claims.refusal import (
    SHOWN_MAX,
    amounts_text,
    does_not_fit,
    label,
    not_covered_conflict,
    other_claim_conflict,
    provider_label,
    refused_by_placement,
)
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Provider, ProviderTree

REQUEST = ClaimRequest("c1", (RequestGroup("", {"VCPU": 2, "MEMORY_MB": 64}),), name="vm")
TREE = ProviderTree([Provider("p1", "node1")])


def shortfall(number: int) -> Shortfall:
    return Shortfall("VCPU", 2, number, "node1", "p1", f"only {number} of 9 are free")


def test_the_first_shortfalls_are_shown_and_all_are_in_the_details() -> None:
    for count in (1, SHOWN_MAX, SHOWN_MAX + 3):
        error = does_not_fit(REQUEST, [shortfall(number) for number in range(count)])
        for number in range(count):
            clause = f"2 VCPU asked, {number} free on node1 (only {number} of 9 are free)"
            assert (clause in error.message) is (number < SHOWN_MAX)
        assert ("and 3 more" in error.message) is (count > SHOWN_MAX)
        assert error.message.startswith("The claim of vm (c1) does not fit: ")
        assert len(error.details["shortfalls"]) == count


def test_a_shortfall_without_a_class_is_its_reason_alone() -> None:
    error = does_not_fit(REQUEST, [Shortfall("", 1, 0, "", "", "the host has no inventory yet")])
    assert error.message == "The claim of vm (c1) does not fit: the host has no inventory yet."
    for host, clause in (("node1", "node1 lacks trait T"), ("", "lacks trait T")):
        error = does_not_fit(REQUEST, [Shortfall("", 0, 0, host, host, "lacks trait T", ("T",))])
        assert error.message == f"The claim of vm (c1) does not fit: {clause}."


def test_a_refusal_by_placement_has_the_books_numbers_and_placements_reason() -> None:
    error = refused_by_placement(
        REQUEST, {"p1": {"VCPU": 2}, "p2": {"VGPU": 1}}, "over capacity", TREE, lambda uuid, name, consumer: 7
    )
    assert "2 VCPU asked, 7 free on node1 (Placement refuses: over capacity)" in error.message
    assert "1 VGPU asked, 7 free on provider p2" in error.message


def test_a_refusal_by_placement_is_told_of_the_class_that_it_names() -> None:
    asked = {"p1": {"VCPU": 2, "MEMORY_MB": 64}, "p2": {"VCPU": 1, "CUSTOM_VCPU_X": 1}}
    for message in ("1 of VCPU on resource provider p2 (gpu): 8 of 8 are used", "for 'VCPU' on 'p2'."):
        error = refused_by_placement(REQUEST, asked, message, TREE, lambda uuid, name, consumer: 7)
        assert [(each["provider"], each["resource_class"]) for each in error.details["shortfalls"]] == [
            ("provider p2", "VCPU")
        ]


def test_a_conflict_says_what_the_consumer_has() -> None:
    claim = Claim("c1", ClaimState.RELEASING, REQUEST, {"p1": {"VCPU": 2}})
    other = other_claim_conflict(claim)
    assert "vm (c1) is releasing already" in other.message and "64 MEMORY_MB, 2 VCPU" in other.message
    assert other.details == {"consumer": "c1", "holds": {"p1": {"VCPU": 2}}}
    for held, clause in (
        ({"p1": {"VCPU": 1}}, "node1: 1 VCPU; that does not cover the claim (2 VCPU asked, 1 held)"),
        ({"p2": {"VCPU": 1}}, "provider p2: 1 VCPU; none of it is on this host"),
    ):
        error = not_covered_conflict(REQUEST, held, [shortfall(1)], TREE)
        assert clause in error.message and error.details["holds"] == held


def test_labels_prefer_names() -> None:
    assert label(REQUEST) == "vm (c1)" and label(ClaimRequest("c2", ())) == "consumer c2"
    assert provider_label("p1", TREE) == "node1" and provider_label("p2", TREE) == "provider p2"
    assert amounts_text({"B": 2, "A": 1}) == "1 A, 2 B"

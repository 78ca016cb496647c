"""The table of a claim's transitions, and the exact units of a claim."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import (
    CLAIM_TRANSITIONS,
    Claim,
    ClaimState,
    ClaimStep,
    fit_of_claim,
)
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup
from agent.codec import decode, encode
from agent.errors import UsageError

CLAIM = Claim(
    "consumer",
    ClaimState.CLAIMED,
    ClaimRequest("consumer", (RequestGroup("", {"PCPU": 2, "VF": 1}),)),
    {"host": {"PCPU": 2}, "nic": {"VF": 1}},
    {"host": {"PCPU": ("3", "5")}, "nic": {"VF": ("0000:41:02.1",)}},
    makings={"0000:41:02.1": {"parent": "0000:41:00.0", "type": "a"}},
)


def test_every_state_can_be_reached_and_can_end() -> None:
    """A walk over the table: from no claim to each state, and from each state back to no claim."""

    def reachable(start: ClaimState | None) -> set[ClaimState | None]:
        reached, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            after = {to for (before, _), to in CLAIM_TRANSITIONS.items() if before == state} - reached
            reached |= after
            waiting += after
        return reached

    assert reachable(None) == {None, *ClaimState}
    for state in ClaimState:
        assert None in reachable(state)
    assert {step for _, step in CLAIM_TRANSITIONS} == set(ClaimStep)


def test_only_a_claim_that_placement_is_known_to_have_is_claimed() -> None:
    """A write to Placement lies between BEGIN and CLAIMED, and between CLAIMED and no claim."""
    assert CLAIM_TRANSITIONS[None, ClaimStep.BEGIN] is ClaimState.CLAIMING
    ends = {step for (state, step), after in CLAIM_TRANSITIONS.items() if state and after is None}
    assert ends == {ClaimStep.REFUSE, ClaimStep.GONE, ClaimStep.LEFT}
    claimed = {step for (_, step), after in CLAIM_TRANSITIONS.items() if after is ClaimState.CLAIMED}
    assert ClaimStep.BEGIN not in claimed and ClaimStep.RELEASE not in claimed


def test_a_claim_lists_each_exact_unit_and_is_its_own_fit() -> None:
    assert set(CLAIM.exact) == {("host", "PCPU", "3"), ("host", "PCPU", "5"), ("nic", "VF", "0000:41:02.1")}
    fit = fit_of_claim(CLAIM)
    assert fit.fits and not fit.shortfalls
    assert (fit.allocations, fit.units, fit.makings) == (CLAIM.allocations, CLAIM.units, CLAIM.makings)


CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
REQUEST = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2}),), name="vm")

uuids = st.uuids().map(str)
classes = st.sampled_from(["PCPU", "VCPU", "CUSTOM_A"])
cpus = st.frozensets(st.integers(0, 99), max_size=4)
cells = st.builds(
    PlacedCell,
    st.integers(0, 7),
    st.integers(0, 7),
    st.dictionaries(st.integers(0, 99), st.integers(0, 999), max_size=4),
    cpus,
    st.sampled_from([4, 2048, 1048576]),
    st.integers(0, 10**6),
    cpus,
)
claims = st.builds(
    Claim,
    st.just(CONSUMER),
    st.sampled_from(ClaimState),
    st.just(REQUEST),
    st.dictionaries(uuids, st.dictionaries(classes, st.integers(1, 10**6)), max_size=3),
    st.dictionaries(uuids, st.dictionaries(classes, st.lists(st.text(min_size=1, max_size=9)).map(tuple))),
    st.floats(0, 2**40),
    st.booleans(),
    st.lists(cells, max_size=2).map(tuple),
    st.dictionaries(st.text(min_size=1, max_size=9), st.just({"parent": "0000:41:00.0", "type": "nvidia-1"})),
)


@given(claims)
def test_what_is_written_comes_back(claim: Claim) -> None:
    assert decode(Claim, json.loads(json.dumps(encode(Claim, claim)))) == claim


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer", "vm"),
        ("state", "done"),
        ("request", {}),
        ("allocations", {"host": {"VCPU": 1}}),
        ("allocations", {CONSUMER: {"VCPU": 0}}),
        ("units", {CONSUMER: {"VCPU": "3"}}),
        ("since", "yesterday"),
        ("since", True),
        ("cells", [{"cell": 0, "pinned_cpus": {"a": 1}}]),
        ("makings", {"unit": {"parent": 1}}),
    ],
)
def test_an_invalid_value_is_refused(key: str, value: Any) -> None:
    record = encode(Claim, Claim(CONSUMER, ClaimState.CLAIMED, REQUEST, {}))
    with pytest.raises(UsageError):
        decode(Claim, {**record, key: value})


def test_a_claim_of_an_earlier_version_has_no_cells_and_no_makings() -> None:
    claim = Claim(CONSUMER, ClaimState.CLAIMED, REQUEST, {})
    record = encode(Claim, claim)
    del record["cells"], record["makings"]
    assert decode(Claim, record) == claim
    assert decode(tuple[PlacedCell, ...], []) == ()

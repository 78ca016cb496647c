"""A claim survives its JSON, and JSON that is no claim is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState
from agent.claims.claim_json import claim_to_json, read_cells, read_claim
from agent.claims.numa.cell_fit import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import UsageError

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
    assert read_claim(json.loads(json.dumps(claim_to_json(claim)))) == claim


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
    record = claim_to_json(Claim(CONSUMER, ClaimState.CLAIMED, REQUEST, {}))
    with pytest.raises(UsageError):
        read_claim({**record, key: value})


def test_a_claim_of_an_earlier_version_has_no_cells_and_no_makings() -> None:
    claim = Claim(CONSUMER, ClaimState.CLAIMED, REQUEST, {})
    record = claim_to_json(claim)
    del record["cells"], record["makings"]
    assert read_claim(record) == claim
    assert read_cells([]) == ()

"""The audit's judgement alone: healthy hosts have no suspects, whatever was claimed."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kits.tracker import HOST, POOL, UNITS, request, uuid_of

from agent.audit.finding import FindingKind, Holding
from agent.audit.judge import Truths, judge, on_devices, on_providers, suspects
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.claims.ledger import Ledger
from agent.driver import Guest, GuestState
from agent.tree import ProviderTree

TREE = ProviderTree([*HOST, POOL])
HOST_OF = ProviderIndex.of(TREE, uuid_of("host"))

WANTED = st.fixed_dictionaries(
    {},
    optional={
        "VCPU": st.integers(1, 4),
        "PCPU": st.integers(1, 2),
        "VGPU": st.integers(1, 2),
        "MEMORY_MB": st.integers(1, 512),
        "DISK_GB": st.integers(1, 10),
        "SRIOV_NET_VF": st.integers(1, 1),
    },
).filter(bool)


def claimed(wanted: list[dict[str, int]]) -> dict[str, Claim]:
    """As many of these as fit, one after the other."""
    ledger = Ledger()
    ledger.refresh(HOST_OF, {}, UNITS)
    for number, resources in enumerate(wanted):
        asked = request(str(UUID(int=number + 1)), **resources)
        found = ledger.fit(asked)
        if found.fits:
            ledger.put(Claim(asked.consumer, ClaimState.CLAIMED, asked, found.allocations, found.units))
    return dict(ledger.claims)


def truths(claims: dict[str, Claim], guests: bool) -> Truths:
    held: dict[str, dict[str, dict[str, int]]] = {}
    for claim in claims.values():
        for uuid, amounts in claim.allocations.items():
            if HOST_OF.is_own(uuid):
                held.setdefault(uuid, {})[claim.consumer] = dict(amounts)
    seen = {
        claim.consumer: Guest(claim.consumer, "guest", GuestState.RUNNING, claim.request.resources)
        for claim in claims.values()
    }
    return Truths(HOST_OF, seen if guests else {}, claims, (), held, {}, UNITS)


@given(st.lists(WANTED, max_size=8), st.booleans())
def test_nothing_is_found_on_a_healthy_host(wanted: list[dict[str, int]], guests: bool) -> None:
    seen = truths(claimed(wanted), guests)
    assert not suspects(seen)
    assert [*on_providers(seen), *on_devices(seen)] == []
    for consumer, claim in seen.claims.items():
        assert judge(seen, consumer, Holding(consumer, claim.allocations, 1)) is None


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_a_claim_with_neither_guest_nor_allocation_is_leaked(wanted: list[dict[str, int]]) -> None:
    claims = claimed(wanted)
    consumer = next(iter(claims))
    seen = truths(claims, guests=False)
    held = {
        uuid: {who: each for who, each in on.items() if who != consumer} for uuid, on in seen.held.items()
    }
    lost = Truths(HOST_OF, {}, claims, (), held)
    if any(HOST_OF.is_own(uuid) for uuid in claims[consumer].allocations):
        assert suspects(lost) == {consumer}
    found = judge(lost, consumer, Holding(consumer, {}))
    assert found is not None and found.kind is FindingKind.LEAKED_CLAIM and found.own
    assert [str(step) for step in found.repair] == [f"release the claim of {consumer}"]


@given(st.lists(WANTED, min_size=1, max_size=4))
def test_doubled_is_reduced_to_where_the_guest_is(wanted: list[dict[str, int]]) -> None:
    claims = claimed(wanted)
    consumer, claim = next(iter(claims.items()))
    here = {uuid: amounts for uuid, amounts in claim.allocations.items() if HOST_OF.is_own(uuid)}
    if not here:
        return
    held = Holding(consumer, {**claim.allocations, uuid_of("elsewhere"): {"VCPU": 1}}, 3)
    for guests in (True, False):
        found = judge(truths(claims, guests), consumer, held)
        assert found is not None and found.kind is FindingKind.DOUBLED and not found.own
        (step,) = found.repair
        left = step.write.allocations  # type: ignore[union-attr]
        assert (uuid_of("elsewhere") in left) is not guests
        assert all((uuid in left) is guests for uuid in here)

"""The rules between the parts of a request, as Placement answers 400 where they are broken."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.request import (
    DEVICE_PREFIX,
    GROUPS_MAX,
    SIZES_MAX,
    ClaimRequest,
    RequestGroup,
    _read_cpus,
    by_size,
    check_request,
    has_unresolved_devices,
    is_device_group,
    named_as,
    with_others,
    wrong_cards,
)
from agent.device_names import VRAM_CLASS
from agent.driver import Guest, GuestState
from agent.errors import UsageError
from agent.tree import Inventory, Provider, ProviderTree


def group(suffix: str = "", **resources: int) -> RequestGroup:
    return RequestGroup(suffix, resources)


def ask(*groups: RequestGroup, policy: str | None = None, devices: int = 0) -> ClaimRequest:
    return ClaimRequest("consumer", groups, policy, pci=(("nic", devices),) if devices else ())


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ask(group("1", VGPU=1), policy="any"), "group_policy: 'any' is not one of"),
        (
            ask(group(VCPU=1), devices=GROUPS_MAX),
            f"{GROUPS_MAX + 1} groups are asked for, {GROUPS_MAX} are allowed",
        ),
        (
            replace(ask(group(VCPU=1)), root_required=frozenset("AB"), root_forbidden=frozenset("B")),
            "root_required: trait B is both required and forbidden",
        ),
        (ask(group(VCPU=1), devices=2**31), "are allowed; each device requested by alias is one"),
    ],
)
def test_a_contradiction_is_refused_with_its_part(request_: ClaimRequest, sentence: str) -> None:
    """Beside those of a body, in test_parse_request."""
    with pytest.raises(UsageError) as refused:
        check_request(request_)
    assert sentence in refused.value.message


def test_a_set_of_cpus_has_a_longest_text() -> None:
    longest = "0," * 8191 + "10"
    assert len(longest) == 16384 and _read_cpus(longest, "cpus") == {0, 10}
    with pytest.raises(UsageError, match="cpus: 16385 characters are too many"):
        _read_cpus(f"{longest}0", "cpus")


def test_a_device_is_unresolved_until_it_has_a_group() -> None:
    device = group(f"{DEVICE_PREFIX}0", VF=1)
    assert is_device_group(device) and not is_device_group(group("1", VF=1))
    assert has_unresolved_devices(ask(group(VCPU=1), devices=1))
    assert not has_unresolved_devices(ask(group(VCPU=1), device, devices=1))
    assert not has_unresolved_devices(ask(group(VCPU=1)))


def test_resources_are_the_sum_of_all_groups() -> None:
    assert ask(group(VCPU=1, VGPU=2), group("1", VGPU=3)).resources == {"VCPU": 1, "VGPU": 5}


SIZES = {f"CUSTOM_VRAM_{mib}MB": mib for mib in (2048, 4096, 16384)}
CLASSES = (*SIZES, "CUSTOM_VRAM_XMB", "VGPU", VRAM_CLASS)


@given(st.lists(st.integers(1, 20000), min_size=1, max_size=3))
def test_an_amount_of_vram_is_each_size_that_is_large_enough_the_smallest_first(amounts: list[int]) -> None:
    groups = [group(str(number), **{VRAM_CLASS: amount}) for number, amount in enumerate(amounts)]
    found = by_size(ask(*groups, group(VCPU=1), policy="none"), lambda: CLASSES).options
    ways = [[next(iter(each.resources)) for each in option.groups[:-1]] for option in found]
    if all(amount <= max(SIZES.values()) for amount in amounts):
        enough = product(*([mib for mib in SIZES.values() if mib >= amount] for amount in amounts))
        assert len(ways) == min(SIZES_MAX, len(list(enough)))
        sums = [sum(SIZES[name] for name in way) for way in ways]
        assert sums == sorted(sums) and len({tuple(way) for way in ways}) == len(ways)
        smallest = [min(mib for mib in SIZES.values() if mib >= amount) for amount in amounts]
        assert [SIZES[name] for name in ways[0]] == smallest
        assert all(SIZES[name] >= amount for way in ways for name, amount in zip(way, amounts, strict=True))
        assert all(option.groups[-1].resources == {"VCPU": 1} for option in found)
    else:
        assert [option.groups for option in found] == [(*groups, group(VCPU=1))], "it fits nowhere"


def test_what_asks_for_no_vram_stays_as_it_is_and_sizes_have_the_number_of_their_alternative() -> None:
    plain, some = ask(group(VCPU=1)), ask(group(VCPU=1, CUSTOM_VRAM_MB=3000, CUSTOM_VRAM_4096MB=1))
    assert by_size(plain, lambda: CLASSES) is plain
    both = with_others([plain, some])
    assert by_size(with_others([plain, plain]), lambda: CLASSES).options[1].alternative == 2
    found = by_size(both, lambda: CLASSES).options
    assert [each.alternative for each in found] == [1, 2, 2]
    assert {each.alternative for each in by_size(some, lambda: CLASSES).options} == {0}, "none was given"
    assert [dict(each.groups[0].resources) for each in found] == [
        {"VCPU": 1},
        {"VCPU": 1, "CUSTOM_VRAM_4096MB": 2},
        {"VCPU": 1, "CUSTOM_VRAM_4096MB": 1, "CUSTOM_VRAM_16384MB": 1},
    ]


def test_a_device_by_alias_is_one_group_before_and_after_its_alias_is_resolved() -> None:
    half = GROUPS_MAX // 2
    own = [group(f"_{number}", VGPU=1) for number in range(half)]
    resolved = [group(f"{DEVICE_PREFIX}{number}", PGPU=1) for number in range(half)]
    for groups in (own, [*own, *resolved]):
        assert check_request(ask(*groups, policy="none", devices=half))
        with pytest.raises(UsageError, match=f"{GROUPS_MAX + 1} groups are asked for"):
            check_request(ask(group("_more", VGPU=1), *groups, policy="none", devices=half))


@pytest.mark.parametrize(
    ("own", "other", "name"), [("a", "b", "a"), ("a", "", ""), ("", "b", "b"), ("", "", "")]
)
def test_two_requests_differ_by_their_names_only_where_both_have_one(own: str, other: str, name: str) -> None:
    named = replace(ask(group(VCPU=1)), name=own)
    assert named_as(named, replace(named, name=other)).name == name


@pytest.mark.parametrize(
    ("state", "encryption", "problem", "wrong"),
    [
        (GuestState.RUNNING, set(), None, False),
        (GuestState.RUNNING, {"HW_CPU_X86_INTEL_TDX"}, None, True),
        (GuestState.RUNNING, set(), "unread", True),
        (GuestState.SHUTOFF, set(), None, True),
        (GuestState.CRASHED, {"HW_CPU_X86_AMD_SEV"}, None, False),
    ],
)
def test_the_card_of_a_guest_is_judged_by_what_it_runs_with_and_else_by_its_request(
    state: GuestState, encryption: set[str], problem: str | None, wrong: bool
) -> None:
    """It asked for memory that TDX encrypts; the card is for guests without that."""
    tdx = frozenset({"HW_CPU_X86_INTEL_TDX"})
    request = ask(RequestGroup("", {"VCPU": 1, "MEM_ENCRYPTION_CONTEXT": 1}, (tdx,)))
    card = Provider("card", "card", "host", {"PGPU": Inventory(1)})
    tree = ProviderTree([Provider("host", "host"), card])
    guest = Guest("consumer", "g", state, {}, problem=problem, encryption=frozenset(encryption))
    found = list(wrong_cards(request, guest, {"card": {"PGPU": 1}}, tree))
    assert [provider.uuid for provider, _ in found] == ["card"] * wrong

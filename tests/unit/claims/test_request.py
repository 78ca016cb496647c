"""The rules between the parts of a request, as Placement answers 400 where they are broken."""

from __future__ import annotations

import pytest

from agent.claims.request import (
    DEVICE_PREFIX,
    GROUPS_MAX,
    ClaimRequest,
    RequestGroup,
    check_request,
    has_unresolved_devices,
    is_device_group,
)
from agent.errors import UsageError


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
        (ask(group(VCPU=1), devices=2**31), "are allowed; each device requested by alias is one"),
    ],
)
def test_a_contradiction_is_refused_with_its_part(request_: ClaimRequest, sentence: str) -> None:
    """Beside those of a body, in test_parse_request."""
    with pytest.raises(UsageError) as refused:
        check_request(request_)
    assert sentence in refused.value.message


def test_a_device_is_unresolved_until_it_has_a_group() -> None:
    device = group(f"{DEVICE_PREFIX}0", VF=1)
    assert is_device_group(device) and not is_device_group(group("1", VF=1))
    assert has_unresolved_devices(ask(group(VCPU=1), devices=1))
    assert not has_unresolved_devices(ask(group(VCPU=1), device, devices=1))
    assert not has_unresolved_devices(ask(group(VCPU=1)))


def test_resources_are_the_sum_of_all_groups() -> None:
    assert ask(group(VCPU=1, VGPU=2), group("1", VGPU=3)).resources == {"VCPU": 1, "VGPU": 5}

"""Aliases of PCI devices: what the configuration may say, and what a request for some becomes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.parse_request import parse_claim, request_to_json
from agent.claims.pci_alias import Alias, parse_aliases, with_device_groups, without_device_groups
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.device_names import product_trait, vendor_trait
from agent.errors import SettingsError, UsageError
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
QAT = {"name": "qat", "vendor_id": "8086", "product_id": "0443"}


def aliases(*data: dict[str, Any]) -> dict[str, Alias]:
    return dict(parse_aliases(json.dumps(each) for each in data))


def ask(*pci: tuple[str, int], policy: str | None = None) -> ClaimRequest:
    groups = (RequestGroup("", {"VCPU": 1}),)
    return ClaimRequest(CONSUMER, groups, topology=TopologyRequest(pci_numa_policy=policy), pci=pci)


def card(name: str, *traits: str, **classes: int) -> Provider:
    return Provider(name, name, "host", {key: Inventory(n) for key, n in classes.items()}, frozenset(traits))


HOST = Provider("host", "host", None, {"VCPU": Inventory(4)})


def test_an_alias_as_operators_write_it_for_nova() -> None:
    found = aliases(
        {
            **QAT,
            "product_id": "0x443",
            "device_type": "type-VF",
            "numa_policy": "required",
            "resource_class": "crypto",
            "traits": "HW_GPU_API_VULKAN, my-qat",
            "live_migratable": "yes",
            "capability_type": "pci",
        },
        {"name": "gpu", "resource_class": "PGPU", "live_migratable": False},
    )
    assert found == {
        "qat": Alias(
            "qat",
            "8086",
            "0443",
            "type-VF",
            "required",
            "CUSTOM_CRYPTO",
            frozenset({"HW_GPU_API_VULKAN", "CUSTOM_MY_QAT"}),
            True,
        ),
        "gpu": Alias("gpu", resource_class="PGPU", live_migratable=False),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is not valid JSON"),
        ("[]", "an object was expected"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"vendor_id": "8086", "product_id": "0443"}', "it needs a name"),
        ('{"name": "a b", "resource_class": "PGPU"}', "it needs a name"),
        ('{"name": 3}', "name must be text, not 3"),
        ('{"name": "a"}', "give vendor_id and product_id, or resource_class"),
        ('{"name": "a", "vendor_id": "8086"}', "give vendor_id and product_id, or resource_class"),
        (
            '{"name": "a", "vendor_id": "80867", "product_id": "1"}',
            "vendor_id '80867' is not an id of one to four",
        ),
        ('{"name": "a", "vendor": "8086"}', "'vendor' is not known; there are capability_type, device_type"),
        ('{"name": "a", "resource_class": "!"}', "'!' has no letter or digit"),
        ('{"name": "a", "resource_class": "X", "traits": "!"}', "'!' has no letter or digit"),
        ('{"name": "a", "resource_class": "X", "device_type": "VF"}', "device_type is one of type-PCI, "),
        ('{"name": "a", "resource_class": "X", "numa_policy": "strict"}', "numa_policy is one of required, "),
        (
            '{"name": "a", "resource_class": "X", "live_migratable": "maybe"}',
            "live_migratable must be true or fal",
        ),
        ('{"name": "a", "resource_class": "X", "capability_type": "usb"}', "capability_type is one of pci"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_aliases((text,))
    assert caught.value.message.startswith("[pci] alias ")
    assert message in caught.value.message


def test_a_name_is_given_once() -> None:
    with pytest.raises(SettingsError, match="the name 'qat' is given twice; for an alias of several models"):
        aliases(QAT, {**QAT, "product_id": "0444"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["8086", "PGPU"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "vendor_id", "product_id", "resource_class", "traits", "numa_policy"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=6,
    )
)
def test_no_alias_does_worse_than_settingserror(data: object) -> None:
    try:
        parse_aliases((json.dumps(data),))
    except SettingsError as error:
        assert error.message.startswith("[pci] alias ")


def test_each_device_is_a_group_of_its_own() -> None:
    known = aliases(
        {**QAT, "traits": "fast"}, {"name": "gpu", "resource_class": "PGPU", "numa_policy": "required"}
    )
    found = with_device_groups(ask(("qat", 2), ("gpu", 1)), known, ProviderTree([HOST]), {})
    fast = (frozenset({"CUSTOM_FAST"}),)
    assert found.groups[1:] == (
        RequestGroup("pci-0", {"CUSTOM_PCI_8086_0443": 1}, fast, numa_policy="legacy"),
        RequestGroup("pci-1", {"CUSTOM_PCI_8086_0443": 1}, fast, numa_policy="legacy"),
        RequestGroup("pci-2", {"PGPU": 1}, numa_policy="required"),
    )
    assert found.group_policy is None, "which devices do not need"
    assert without_device_groups(found) == ask(("qat", 2), ("gpu", 1))
    assert without_device_groups(ask()) == ask()
    assert parse_claim(request_to_json(found)) == found


def test_the_flavors_policy_goes_before_the_aliass() -> None:
    known = aliases({**QAT, "numa_policy": "required"})
    found = with_device_groups(ask(("qat", 1), policy="preferred"), known, ProviderTree([HOST]), {})
    assert found.groups[1].numa_policy == "preferred"


def test_the_class_is_the_one_that_the_host_has_for_such_devices() -> None:
    traits = ("CUSTOM_PCI_TYPE_VF", vendor_trait("8086"), product_trait("10ca"))
    nic = card("nic", *traits, SRIOV_NET_VF=2, NET_BW_EGR_KILOBIT_PER_SEC=10)
    units: dict[str, dict[str, tuple[str, ...]]] = {"nic": {"SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2")}}
    known = aliases({"name": "vf", "vendor_id": "8086", "product_id": "10ca", "device_type": "type-VF"})
    found = with_device_groups(ask(("vf", 1)), known, ProviderTree([HOST, nic]), units)
    (group,) = found.groups[1:]
    assert group.resources == {"SRIOV_NET_VF": 1}
    assert group.required == tuple(frozenset({trait}) for trait in sorted(traits))
    other = card("other", *traits, CUSTOM_NIC=1)
    units["other"] = {"CUSTOM_NIC": ("0000:42:10.0",)}
    with pytest.raises(UsageError, match="'vf' stands for devices of the classes CUSTOM_NIC, SRIOV_NET_VF"):
        with_device_groups(ask(("vf", 1)), known, ProviderTree([HOST, nic, other]), units)


def test_live_migratable_is_a_trait_wanted_or_not() -> None:
    yes, no = ({"name": "a", "resource_class": "PGPU", "live_migratable": each} for each in ("true", "no"))
    found = [with_device_groups(ask(("a", 1)), aliases(each), ProviderTree([HOST]), {}) for each in (yes, no)]
    assert found[0].groups[1].required == (frozenset({"HW_PCI_LIVE_MIGRATABLE"}),)
    assert found[1].groups[1].forbidden == {"HW_PCI_LIVE_MIGRATABLE"}


def test_an_alias_that_is_not_configured_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        UsageError, match=r"no alias 'fpga' is configured on this host; \[pci\] alias has qat"
    ):
        with_device_groups(ask(("fpga", 1)), aliases(QAT), ProviderTree([HOST]), {})
    with pytest.raises(UsageError, match="alias has none"):
        with_device_groups(ask(("fpga", 1)), {}, ProviderTree([HOST]), {})


def test_the_suffixes_of_devices_are_nobody_elses() -> None:
    mine = ClaimRequest(CONSUMER, (RequestGroup("pci-0", {"VGPU": 1}),), pci=(("qat", 1),))
    with pytest.raises(UsageError, match="suffixes that begin with 'pci-' are reserved for devices"):
        with_device_groups(mine, aliases(QAT), ProviderTree([HOST]), {})
    alone = replace(mine, pci=())
    assert with_device_groups(alone, aliases(QAT), ProviderTree([HOST]), {}) == alone, "it asks for no alias"


@pytest.mark.parametrize(
    "asked",
    [
        {"groups": [{"resources": {"VCPU": 1}}], "pci": [{"alias": "qat", "count": 2**31 - 1}]},
        {"groups": [{"resources": {"VCPU": 1}}], "pci": [{"alias": "qat", "count": 32}] * 2},
        {"flavor": {"vcpus": 1, "memory_mb": 64, "extra_specs": {"pci_passthrough:alias": "qat:64"}}},
    ],
)
def test_more_devices_than_groups_are_allowed_are_refused_before_any_is_made(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="64 are allowed; each device requested by alias is one"):
        parse_claim({"consumer": CONSUMER, **asked})

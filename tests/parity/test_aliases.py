"""`pci_passthrough:alias` of random aliases asks for what nova asks, but for what the page names."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import pytest
from nova.conf import CONF
from nova.pci import request as pci_request
from nova.scheduler import utils

from agent.claims.parse_request import parse_claim
from agent.claims.pci_alias import parse_aliases, with_device_groups
from agent.claims.request import is_device_group
from agent.device_names import LIVE_MIGRATABLE, TYPES, pci_class, product_trait, vendor_trait
from agent.errors import SettingsError, UsageError
from agent.tree import ProviderTree
from parity.nova_query import CONTEXT, REFUSALS, guest, request_spec
from parity.own_query import CONSUMER
from parity.query import Demand

COUNT = 1000
SEED = int(os.environ.get("PLIMSOLL_TEST_SEED", "36"))
NO_DEVICE = "name:count,name:count"
"""nova takes a count of 0 for no device, the claim refuses it."""

KEYS: Mapping[str, tuple[Any, ...]] = {
    "vendor_id": ("8086", "10DE", "10de"),
    "product_id": ("0443", "1eb8"),
    "resource_class": ("PGPU", "pgpu", "CUSTOM_FPGA", "fpga", "gpu-x", "a__b", "CUSTOM_A__B", "CUSTOM_GPU_1"),
    "traits": (
        "CUSTOM_RED",
        "a__b,CUSTOM_A__B",
        "red,CUSTOM_BLUE",
        "HW_GPU_API_VULKAN,gold-2",
        "COMPUTE_NODE",
    ),
    "device_type": ("type-PCI", "type-PF", "type-VF", "type-X"),
    "numa_policy": ("required", "preferred", "legacy", "socket", "near"),
    "live_migratable": ("yes", "false", "1", "perhaps"),
    "capability_type": ("pci",),
}
WORDS = ("a1:1", "a1:2", "a2:1", "a1:1,a2:2", "a1:1,a1:2", "a2:3, a1:1", "a3:1", "a1:0", "a1", "a1:x")
POLICIES = (None, "required", "preferred", "legacy", "socket")


class Wanted(NamedTuple):
    """One device that is asked for."""

    resource_class: str
    required: frozenset[str]
    forbidden: frozenset[str]
    numa_policy: str


class Refused(Exception):
    """The aliases or the flavor are refused."""


def random_alias(random: Random, name: str) -> dict[str, Any]:
    chosen = {"vendor_id", "product_id"} if random.random() < 0.7 else {"resource_class"}
    chosen |= {key for key in KEYS if random.random() < 0.25}
    return {"name": name, **{key: random.choice(KEYS[key]) for key in sorted(chosen)}}


def demand_of(word: str, policy: str | None) -> Demand:
    specs = {"pci_passthrough:alias": word} | ({"hw:pci_numa_affinity_policy": policy} if policy else {})
    return Demand(1, 512, 0, specs)


def of_nova(aliases: list[dict[str, Any]], demand: Demand) -> tuple[Counter[Wanted], str | None]:
    """The devices that nova's query asks for, and its group policy.

    Beyond nova's own, with the traits that docs/nova-parity.md says the claim asks for as well.
    """
    CONF.set_override("alias", [json.dumps(alias) for alias in aliases], group="pci")
    pci_request.get_alias_from_config.cache_clear()
    by_name = {alias["name"]: alias for alias in aliases}
    try:
        flavor, image = guest(demand)
        requests = pci_request.get_pci_requests_from_flavor(
            flavor, affinity_policy=demand.specs.get("hw:pci_numa_affinity_policy")
        )
        spec = request_spec(flavor, image, requested_resources=[], pci_requests=requests)
        spec.generate_request_groups_from_pci_requests()
        query = utils.resources_from_request_spec(CONTEXT, spec, None)
    except REFUSALS as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
    request_of = {request.request_id: request for request in requests.requests}
    wanted: Counter[Wanted] = Counter()
    for group in spec.requested_resources:
        ((resource_class, amount),) = group.resources.items()
        assert amount == 1 and not group.forbidden_traits
        request = request_of[group.requester_id.rpartition("-")[0]]
        alias = by_name[request.alias_name]
        wanted[
            Wanted(
                resource_class,
                frozenset(group.required_traits) | also_required(alias, resource_class),
                frozenset({LIVE_MIGRATABLE}) if alias.get("live_migratable") == "false" else frozenset(),
                request.numa_policy,
            )
        ] += 1
    return wanted, query.group_policy


def also_required(alias: Mapping[str, Any], resource_class: str) -> set[str]:
    """What nova sorts out by its own tables: type, ids beside a class of another name, live migration."""
    traits = {TYPES[alias["device_type"]]} if "device_type" in alias else set()
    vendor, product = alias.get("vendor_id", "").lower(), alias.get("product_id", "")
    if not (vendor and product and resource_class == pci_class(vendor, product)):
        traits |= {vendor_trait(vendor)} if vendor else set()
        traits |= {product_trait(product)} if product else set()
    if alias.get("live_migratable") in ("yes", "1"):
        traits.add(LIVE_MIGRATABLE)
    return traits


def own(aliases: list[dict[str, Any]], demand: Demand) -> tuple[Counter[Wanted], str | None]:
    """The devices that the claim asks for on a host of which nothing is known, and its group policy."""
    flavor = {"vcpus": 1, "memory_mb": 512, "disk_gb": 0, "extra_specs": dict(demand.specs)}
    try:
        request = with_device_groups(
            parse_claim({"consumer": CONSUMER, "flavor": flavor}),
            parse_aliases(json.dumps(alias) for alias in aliases),
            ProviderTree(),
            {},
        )
    except (SettingsError, UsageError) as error:
        raise Refused(error.message) from error
    wanted: Counter[Wanted] = Counter()
    for group in filter(is_device_group, request.groups):
        ((resource_class, amount),) = group.resources.items()
        assert amount == 1
        required = frozenset(name for any_of in group.required for name in any_of)
        wanted[Wanted(resource_class, required, group.forbidden, group.numa_policy or "")] += 1
    return wanted, request.group_policy


def compare(aliases: list[dict[str, Any]], demand: Demand) -> str | None:
    """How the claim differs from nova, beyond what the page names."""
    try:
        nova = of_nova(aliases, demand)
    except Refused as error:
        try:
            return f"nova refuses: {error}; the claim asks {own(aliases, demand)}"
        except Refused:
            return None
    try:
        ours = own(aliases, demand)
    except Refused as error:
        return None if NO_DEVICE in str(error) else f"only the claim is refused: {error}"
    # nova gives groups of devices a policy by default; the claim's devices need none
    policies = {(None, None), ("none", None)}
    if nova[0] == ours[0] and (nova[1], ours[1]) in policies:
        return None
    return f"nova asks {nova}, the claim {ours}"


@pytest.fixture(autouse=True)
def _nova_as_it_was() -> Iterator[None]:
    yield
    CONF.clear_override("alias", group="pci")
    pci_request.get_alias_from_config.cache_clear()


def test_random_aliases_ask_for_the_same_devices() -> None:
    random = Random(SEED)
    found, equal = [], 0
    for _ in range(COUNT):
        aliases = [random_alias(random, name) for name in ("a1", "a2")]
        demand = demand_of(random.choice(WORDS), random.choice(POLICIES))
        difference = compare(aliases, demand)
        if difference is not None:
            found.append((aliases, demand.specs, difference))
        equal += difference is None
    assert not found, (len(found), found[:5])
    assert equal == COUNT


@pytest.mark.parametrize(
    ("traits", "nova", "claim"),
    [
        ("hw_gpu_api_vulkan", "CUSTOM_HW_GPU_API_VULKAN", "HW_GPU_API_VULKAN"),
        ("CUSTOM_A, CUSTOM_B", "CUSTOM__CUSTOM_B", "CUSTOM_B"),
    ],
)
def test_names_that_the_page_says_are_written_otherwise(traits: str, nova: str, claim: str) -> None:
    aliases = [{"name": "a1", "resource_class": "PGPU", "traits": traits}]
    demand = demand_of("a1:1", None)
    for wanted, name in ((of_nova(aliases, demand), nova), (own(aliases, demand), claim)):
        (device,) = wanted[0]
        assert name in device.required


def test_ids_may_have_fewer_digits_than_nova_wants() -> None:
    aliases = [{"name": "a1", "vendor_id": "0x808", "product_id": "443"}]
    with pytest.raises(Refused):
        of_nova(aliases, demand_of("a1:1", None))
    (devices, _) = own(aliases, demand_of("a1:1", None))
    assert [device.resource_class for device in devices] == ["CUSTOM_PCI_0808_0443"]

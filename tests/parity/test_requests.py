"""The claim of a random flavor and image asks for what nova's query asks for, but for what the page names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from agent.claims.extra_specs import REFUSED_BY_NOVA, REFUSED_HERE
from agent.errors import UsageError
from parity.demands import random_demands
from parity.nova_query import NovaRefuses, nova_query
from parity.own_query import own_query
from parity.query import Demand, Group, Query

COUNT = int(os.environ.get("PLIMSOLL_TEST_FLAVORS", "10000"))
SEED = int(os.environ.get("PLIMSOLL_TEST_SEED", "34"))

SPELLINGS = ("TRAIT:", "trait.1:", "Resources:", "HW:", "hw_cpu_policy:")
NO_WORDS = ("expected required, not 'Required'.", "'maybe' is not a truth value such as true or false.")

HOST_TRAITS = ("COMPUTE_SECURITY_", "COMPUTE_ADDRESS_SPACE_")
"""Starts of the traits that nova asks of the unsuffixed group, and Plimsoll of the root."""


def like_ours(query: Query, demand: Demand) -> Query:
    """nova's query with the differences that docs/nova-parity.md names, and no other."""
    own = query.groups.get("", Group())
    of_root = {name for name in own.required if name.startswith(HOST_TRAITS)}
    dropped = set(of_root)
    both = {**(demand.image or {}), **demand.specs}
    threads = "trait:HW_CPU_HYPERTHREADING" not in {**demand.specs, **(demand.image or {})}
    if threads:
        dropped.add("HW_CPU_HYPERTHREADING")
    forbidden = own.forbidden - ({"HW_CPU_HYPERTHREADING"} if threads else set())
    if "socket" in (both.get("hw:pci_numa_affinity_policy"), both.get("hw_pci_numa_affinity_policy")):
        dropped.add("COMPUTE_SOCKET_PCI_NUMA_AFFINITY")
    root = (set(query.root_required) | of_root) - {"COMPUTE_ACCELERATORS"}
    if "hw:tpm_secret_security" not in demand.specs:
        root.discard("COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER")
    groups = {**query.groups, "": replace(own, required=own.required - dropped, forbidden=forbidden)}
    return replace(
        query,
        groups={suffix: group for suffix, group in groups.items() if group != Group()},
        root_required=frozenset(root) | viommu(demand),
        root_forbidden=query.root_forbidden - {"COMPUTE_STATUS_DISABLED"},
    )


def viommu(demand: Demand) -> set[str]:
    model = demand.specs.get("hw:viommu_model") or (demand.image or {}).get("hw_viommu_model")
    return {f"COMPUTE_VIOMMU_MODEL_{model.upper()}"} if model else set()


def without_image_viommu(demand: Demand) -> Demand:
    """nova asks for none of an image's traits if it names a vIOMMU, so its answer is of no use there."""
    image = {key: value for key, value in (demand.image or {}).items() if key != "hw_viommu_model"}
    return replace(demand, image=image if demand.image is not None else None)


ONLY_HERE: Mapping[str, Callable[[Demand, Query, str], bool]] = {
    "unknown": lambda demand, query, why: "unknown image property" in why,
    "group policy": lambda demand, query, why: why.startswith("group_policy: the groups"),
    "group without resources": lambda demand, query, why: any(
        not group.resources for group in query.groups.values()
    ),
    "required and forbidden": lambda demand, query, why: any(
        group.required & group.forbidden for group in query.groups.values()
    ),
    "cells without number": lambda demand, query, why: "hw:numa_" in why or "image hw_numa_" in why,
    "conflict over nothing": lambda demand, query, why: "they exclude each other" in why,
    "property twice": lambda demand, query, why: "given twice" in why,
    "all realtime": lambda demand, query, why: why.startswith("hw:cpu_realtime_mask"),
    "spelling": lambda demand, query, why: why.startswith(SPELLINGS),
    "group of CPUs": lambda demand, query, why: (
        "no group of their own" in why
        or why.startswith(("resources_NET:VCPU: hw:cpu_policy", "resources:PCPU: resources_NET:VCPU"))
    ),
    "cells without memory": lambda demand, query, why: "the guest has NUMA cells" in why,
    "nothing": lambda demand, query, why: "the request is empty" in why,
    "no trait": lambda demand, query, why: why.startswith("image hw_architecture: expected one of"),
    "no such trait": lambda demand, query, why: why.startswith("image trait:HW_CPU_X86_AVX52:"),
    "no word": lambda demand, query, why: why.endswith(NO_WORDS),
    "bits": lambda demand, query, why: "2Mb" in why,
}
"""{name of a refusal of the claim alone: whether this is one}"""

ONLY_NOVA: Mapping[str, Callable[[Demand, str], bool]] = {
    "encryption without image": lambda demand, why: demand.image is None and "encryption" in why,
    "locked memory": lambda demand, why: "LockMemoryForbidden" in why,
    "threads of shared CPUs": lambda demand, why: "CPUThreadPolicyConfigurationInvalid" in why,
    "optional secure boot": lambda demand, why: demand.specs.get("os:secure_boot") == "optional",
    "blanks": lambda demand, why: bool({"", "6GB, 16GB"} & {demand.specs.get("hw:pmem")}),
    "no claim": lambda demand, why: any(
        text in why for text in ("'many' is not", "'x' is not of the format")
    ),
    "other spelling": lambda demand, why: "'1G'" in why or "VGA is invalid" in why,
    "riscv64": lambda demand, why: "'riscv64' is not valid" in why,
    "half a cell": lambda demand, why: "ImageNUMATopologyIncomplete" in why,
}
"""{name of a refusal of nova alone: whether this is one}"""


def test_each_refusal_of_one_side_has_a_row() -> None:
    assert ONLY_HERE.keys() == REFUSED_HERE.keys()
    assert ONLY_NOVA.keys() == REFUSED_BY_NOVA.keys()


def compare(demand: Demand, met: Counter[str]) -> str | None:
    """How the claim differs from nova's query, beyond what the page names; `met` counts what it names."""
    try:
        nova = nova_query(without_image_viommu(demand))
    except NovaRefuses as error:
        try:
            own_query(demand)
        except UsageError:
            return None
        named = [name for name, applies in ONLY_NOVA.items() if applies(demand, str(error))]
        met.update(named[:1])
        return None if named else f"nova refuses: {error}"
    try:
        own = own_query(demand)
    except UsageError as error:
        named = [name for name, applies in ONLY_HERE.items() if applies(demand, nova, error.message)]
        met.update(named[:1])
        return None if named else f"only the claim is refused: {error.message}"
    met["equal"] += 1
    if own == like_ours(nova, demand):
        return None
    return f"nova asks {like_ours(nova, demand)}, the claim {own}"


RARE: Mapping[str, Demand] = {
    "required and forbidden": Demand(
        1, 512, 0, {"trait:HW_CPU_X86_AVX2": "forbidden"}, {"trait:HW_CPU_X86_AVX2": "required"}
    ),
    "all realtime": Demand(
        4,
        512,
        0,
        {
            "hw:cpu_policy": "mixed",
            "hw:cpu_realtime": "yes",
            "hw:cpu_realtime_mask": "0-3",
            "hw:emulator_threads_policy": "share",
        },
    ),
    "conflict over nothing": Demand(1, 512, 0, {"hw:tpm_model": "tpm-crb"}, {"hw_tpm_model": "tpm-tis"}),
    "group of CPUs": Demand(4, 512, 0, {"resources_NET:VCPU": "1", "hw:cpu_policy": "shared"}),
    "nothing": Demand(1, 512, 0, {"resources:VCPU": "0", "resources:MEMORY_MB": "0"}),
    "cells without memory": Demand(2, 512, 0, {"resources1:MEMORY_MB": "256", "hw:numa_nodes": "2"}),
    "no such trait": Demand(1, 512, 0, {}, {"trait:HW_CPU_X86_AVX52": "required"}),
    "property twice": Demand(1, 512, 0, {}, {"hw_architecture": "i686", "architecture": "x86_64"}),
    "optional secure boot": Demand(1, 512, 0, {"os:secure_boot": "optional"}),
    "half a cell": Demand(4, 4096, 0, {"hw:numa_nodes": "1", "hw:numa_mem.0": "4096"}),
}
"""{name of a difference that random flavors do not always show: one that does}"""


@pytest.mark.parametrize("name", RARE)
def test_a_rare_difference_is_the_one_that_the_page_names(name: str) -> None:
    met: Counter[str] = Counter()
    assert compare(RARE[name], met) is None
    assert met == {name: 1}


def test_ten_thousand_random_flavors_and_images_ask_for_the_same() -> None:
    met: Counter[str] = Counter()
    found = []
    for demand in random_demands(COUNT, SEED):
        difference = compare(demand, met)
        if difference is not None:
            found.append((demand, difference))
    assert not found, (len(found), found[:5])
    assert met["equal"] > COUNT // 5
    assert met.keys() >= (ONLY_HERE.keys() | ONLY_NOVA.keys()) - RARE.keys(), met

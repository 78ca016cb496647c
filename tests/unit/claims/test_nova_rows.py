"""Each row of docs/nova-parity.md on extra specs and image properties, shown by an example."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.claims.device_profiles import ProfileGroup
from agent.claims.extra_specs import (
    CLAIM_SPECS,
    IMAGE_NO_CLAIM,
    NO_CLAIM,
    REFUSED_BY_NOVA,
    REFUSED_HERE,
    TRAIT_PROPERTIES,
)
from agent.claims.parse_request import parse_claim
from agent.errors import UsageError

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
PLAIN = {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 10}
SEV = frozenset({"HW_CPU_X86_AMD_SEV"})


@dataclass(frozen=True)
class Example:
    """A flavor's specs and an image, and what the claim asks for beyond a plain flavor's."""

    specs: dict[str, str] = field(default_factory=dict)
    image: dict[str, str] | None = None
    resources: dict[str, int] = field(default_factory=lambda: dict(PLAIN))
    root: frozenset[str] = frozenset()
    required: tuple[frozenset[str], ...] = ()
    topology: dict[str, Any] = field(default_factory=dict)
    suffixes: tuple[str, ...] = ("",)


def pinned(count: int, shared: int = 0) -> dict[str, int]:
    cpus = {"VCPU": shared, "PCPU": count}
    return {name: amount for name, amount in (cpus | PLAIN | cpus).items() if amount}


def root(*names: str) -> frozenset[str]:
    return frozenset(f"COMPUTE_{name}" for name in names)


MIXED = {"hw:cpu_policy": "mixed"}
UEFI = {"hw_firmware_type": "uefi"}
SPECS: dict[str, Example] = {
    "resources[S]:CLASS": Example(
        {"resources1:VGPU": "1", "resources:DISK_GB": "0"},
        resources={"VCPU": 4, "MEMORY_MB": 4096, "VGPU": 1},
        suffixes=("", "1"),
    ),
    "trait[S]:TRAIT": Example({"trait:CUSTOM_A": "required"}, required=(frozenset({"CUSTOM_A"}),)),
    "hw:cpu_policy": Example(
        {"hw:cpu_policy": "dedicated"}, resources=pinned(4), topology={"cpu_policy": "dedicated"}
    ),
    "plimsoll:orN:KEY": Example({"plimsoll:or2:resources:VGPU": "1"}),  # it asks for the first one
    "hw:cpu_dedicated_mask": Example(
        {**MIXED, "hw:cpu_dedicated_mask": "^0"},
        resources=pinned(3, 1),
        topology={"dedicated_cpus": frozenset({1, 2, 3})},
    ),
    "hw:cpu_realtime": Example(
        {**MIXED, "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "3"},
        resources=pinned(1, 3),
        topology={"dedicated_cpus": frozenset({3})},
    ),
    "hw:cpu_realtime_mask": Example({"hw:cpu_realtime_mask": "3"}),
    "hw:cpu_thread_policy": Example(
        {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
        resources=pinned(4),
        topology={"cpu_thread_policy": "isolate"},
    ),
    "hw:emulator_threads_policy": Example(
        {"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"},
        resources=pinned(5),
        topology={"isolate_emulator": True},
    ),
    "hw:numa_nodes": Example({"hw:numa_nodes": "2"}, topology={"cells": 2}),
    "hw:numa_cpus.N": Example(
        {"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3"}, topology={"cell_cpus": (frozenset(range(4)),)}
    ),
    "hw:numa_mem.N": Example(
        {"hw:numa_nodes": "1", "hw:numa_mem.0": "4096"}, topology={"cell_memory_mb": (4096,)}
    ),
    "hw:mem_page_size": Example({"hw:mem_page_size": "2MB"}, topology={"mem_page_size": 2048}),
    "hw:pci_numa_affinity_policy": Example(
        {"hw:pci_numa_affinity_policy": "socket"}, topology={"pci_numa_policy": "socket"}
    ),
    "hw:mem_encryption": Example(
        {"hw:mem_encryption": "true"}, resources={**PLAIN, "MEM_ENCRYPTION_CONTEXT": 1}, required=(SEV,)
    ),
    "hw:mem_encryption_model": Example(
        {"hw:mem_encryption": "true", "hw:mem_encryption_model": "intel-tdx"},
        resources={**PLAIN, "MEM_ENCRYPTION_CONTEXT": 1},
        required=(frozenset({"HW_CPU_X86_INTEL_TDX"}),),
    ),
    "hw:pmem": Example(
        {"hw:pmem": "6GB,6GB,16GB"},
        resources={**PLAIN, "CUSTOM_PMEM_NAMESPACE_6GB": 2, "CUSTOM_PMEM_NAMESPACE_16GB": 1},
        topology={"cells": 1},
    ),
    "hw:tpm_version": Example({"hw:tpm_version": "1.2"}, root=root("SECURITY_TPM_1_2", "SECURITY_TPM_TIS")),
    "hw:tpm_model": Example(
        {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"},
        root=root("SECURITY_TPM_2_0", "SECURITY_TPM_CRB"),
    ),
    "hw:tpm_secret_security": Example(
        {"hw:tpm_version": "2.0", "hw:tpm_secret_security": "host"},
        root=root("SECURITY_TPM_2_0", "SECURITY_TPM_TIS", "SECURITY_TPM_SECRET_SECURITY_HOST"),
    ),
    "os:secure_boot": Example({"os:secure_boot": "required"}, root=root("SECURITY_UEFI_SECURE_BOOT")),
    "hw:maxphysaddr_mode": Example({"hw:maxphysaddr_mode": "emulate"}, root=root("ADDRESS_SPACE_EMULATED")),
    "hw:ephemeral_encryption": Example({"hw:ephemeral_encryption": "yes"}, root=root("EPHEMERAL_ENCRYPTION")),
    "hw:ephemeral_encryption_format": Example(
        {"hw:ephemeral_encryption": "yes", "hw:ephemeral_encryption_format": "luks"},
        root=root("EPHEMERAL_ENCRYPTION", "EPHEMERAL_ENCRYPTION_LUKS"),
    ),
    "hw:virtio_packed_ring": Example({"hw:virtio_packed_ring": "on"}, root=root("NET_VIRTIO_PACKED")),
    "hw:sound_model": Example({"hw:sound_model": "virtio"}, root=root("SOUND_MODEL_VIRTIO")),
    "hw:viommu_model": Example({"hw:viommu_model": "intel"}, root=root("VIOMMU_MODEL_INTEL")),
}
IMAGES: dict[str, Example] = {
    "hw_cdrom_bus": Example(image={"hw_cdrom_bus": "sata"}, root=root("STORAGE_BUS_SATA")),
    "hw_disk_bus": Example(image={"hw_disk_bus": "virtio"}, root=root("STORAGE_BUS_VIRTIO")),
    "hw_video_model": Example(image={"hw_video_model": "qxl"}, root=root("GRAPHICS_MODEL_QXL")),
    "hw_vif_model": Example(image={"hw_vif_model": "ne2k-pci"}, root=root("NET_VIF_MODEL_NE2K_PCI")),
    "hw_architecture": Example(image={"hw_architecture": "i686"}, root=frozenset({"HW_ARCH_I686"})),
    "hw_emulation_architecture": Example(
        image={"hw_emulation_architecture": "aarch64"}, root=root("ARCH_AARCH64")
    ),
    "trait:TRAIT": Example(image={"trait:CUSTOM_A": "required"}, required=(frozenset({"CUSTOM_A"}),)),
    "hw_firmware_stateless": Example(
        image={**UEFI, "hw_firmware_stateless": "yes"}, root=root("SECURITY_STATELESS_FIRMWARE")
    ),
    "hw_firmware_type": Example(image=UEFI),
    "hw_machine_type": Example(image={"hw_machine_type": "pc"}),
}
PROFILES = {"fpga": (ProfileGroup({"FPGA": 1}, frozenset({"CUSTOM_ARRIA10"})),)}
OF_GROUPS = {
    "group_policy": {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"},
    "same_subtree": {
        "resources1:VGPU": "1",
        "resources_N:FPGA": "1",
        "same_subtree": "1,_N",
        "group_policy": "none",
    },
    "pci_passthrough:alias": {"pci_passthrough:alias": "a1:2"},
    "accel:device_profile": {"accel:device_profile": "fpga"},
}


def ask(example: Example) -> Any:
    flavor = {"vcpus": 4, "memory_mb": 4096, "disk_gb": 10, "extra_specs": example.specs}
    image = {} if example.image is None else {"image": example.image}
    return parse_claim({"consumer": CONSUMER, "flavor": flavor, **image}, PROFILES)


def check(example: Example) -> None:
    request = ask(example)
    assert request.resources == example.resources
    assert request.root_required == example.root
    assert tuple(group.suffix for group in request.groups) == example.suffixes
    assert request.groups[0].required == example.required
    for name, value in example.topology.items():
        assert getattr(request.topology, name) == value


@pytest.mark.parametrize("key", SPECS)
def test_the_claim_asks_for_what_the_row_of_the_spec_says(key: str) -> None:
    check(SPECS[key])


@pytest.mark.parametrize("key", IMAGES)
def test_the_claim_asks_for_what_the_row_of_the_property_says(key: str) -> None:
    check(IMAGES[key])


@pytest.mark.parametrize(
    "spec", [row for row in CLAIM_SPECS if row.image and row.key in SPECS], ids=lambda row: row.image
)
def test_a_property_named_like_a_spec_asks_for_the_same(spec: Any) -> None:
    """The flavor keeps the specs that no image can have, and what lets an image choose."""
    properties = {row.key: row.image for row in CLAIM_SPECS if row.image}
    if spec.key == "hw:mem_page_size":
        return check(
            Example(
                {"hw:mem_page_size": "any"}, {"hw_mem_page_size": "2MB"}, topology={"mem_page_size": 2048}
            )
        )
    example = SPECS[spec.key]
    moved = {key.replace(".0", ".N"): key for key in example.specs if key.replace(".0", ".N") in properties}
    image = {
        properties[row].replace(".N", ".0"): example.specs[key]
        for row, key in moved.items()
        if row != "hw:mem_page_size"
    }
    kept = {key: value for key, value in example.specs.items() if key not in moved.values()}
    if any(name.startswith("hw_mem_encryption") for name in image):
        image |= {"hw_firmware_type": "uefi", "hw_firmware_stateless": "yes"}
        own = example.root | {"COMPUTE_SECURITY_STATELESS_FIRMWARE"}
        return check(Example(kept, image, example.resources, own, example.required))
    return check(Example(kept, image, example.resources, example.root, example.required, example.topology))


def test_groups_and_aliases_are_asked_for_as_the_flavor_says() -> None:
    assert ask(Example(OF_GROUPS["group_policy"])).group_policy == "isolate"
    assert ask(Example(OF_GROUPS["same_subtree"])).same_subtree == (frozenset({"1", "_N"}),)
    assert ask(Example(OF_GROUPS["pci_passthrough:alias"])).pci == (("a1", 2),)
    profile = ask(Example(OF_GROUPS["accel:device_profile"])).groups[1]
    assert (profile.suffix, profile.resources) == ("device_profile_0", {"FPGA": 1})
    assert profile.required == (frozenset({"CUSTOM_ARRIA10"}),)


@pytest.mark.parametrize("key", NO_CLAIM)
def test_a_spec_of_these_changes_no_claim(key: str) -> None:
    assert ask(Example({key.replace("*", "x"): "1"})) == ask(Example())


@pytest.mark.parametrize("key", IMAGE_NO_CLAIM)
def test_a_property_of_these_changes_no_claim(key: str) -> None:
    assert ask(Example(image={key: "1"})) == ask(Example(image={}))


TWO = {"resources1:VGPU": "1", "resources2:VGPU": "1"}
REFUSED: dict[str, tuple[Example, ...]] = {
    "unknown": (Example(image={"hw_no_such": "1"}), Example({"quotas:cpu_shares": "1"})),
    "group policy": (Example(TWO),),
    "group without resources": (Example({"trait1:CUSTOM_A": "required"}),),
    "required and forbidden": (Example({"trait:CUSTOM_A": "forbidden"}, {"trait:CUSTOM_A": "required"}),),
    "cells without number": (
        Example({"hw:numa_mem.0": "4096"}),
        Example({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-3"}),
    ),
    "conflict over nothing": (Example({"hw:tpm_model": "tpm-crb"}, {"hw_tpm_model": "tpm-tis"}),),
    "property twice": (Example(image={"hw_architecture": "i686", "architecture": "x86_64"}),),
    "all realtime": (
        Example(
            {
                **MIXED,
                "hw:cpu_realtime": "yes",
                "hw:cpu_realtime_mask": "0-3",
                "hw:emulator_threads_policy": "share",
            }
        ),
    ),
    "spelling": (
        Example({"TRAIT:CUSTOM_A": "required"}),
        Example({"trait.1:CUSTOM_A": "required"}),
        Example({"HW:numa_nodes": "2"}),
        Example({"hw_numa_nodes": "2"}),
    ),
    "group of CPUs": (
        Example({"resources1:PCPU": "4"}),
        Example({"resources_NET:PCPU": "4"}),
        Example({"resources_NET:VCPU": "1", "hw:cpu_policy": "shared"}),
        Example({"resources_NET:VCPU": "1", "resources:PCPU": "4"}),
    ),
    "cells without memory": (
        Example({"hw:numa_nodes": "2", "resources1:MEMORY_MB": "256"}),
        Example({"hw:numa_nodes": "2", "resources:MEMORY_MB": "0"}),
    ),
    "nothing": (Example({"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}),),
    "no trait": (Example(image={"hw_architecture": "armv7l"}),),
    "no such trait": (Example(image={"trait:HW_CPU_X86_AVX52": "required"}),),
    "no word": (
        Example(image={"hw_virtio_packed_ring": "maybe"}),
        Example(image={"trait:CUSTOM_A": "Required"}),
    ),
    "bits": (Example({"hw:mem_page_size": "2Mb"}),),
}
"""{name of a sentence on what the claim alone refuses: examples}"""

MADE: dict[str, tuple[Example, ...]] = {
    "encryption without image": (Example({"hw:mem_encryption": "true"}),),
    "locked memory": (Example({"hw:locked_memory": "true"}),),
    "threads of shared CPUs": (Example({"trait:HW_CPU_HYPERTHREADING": "required"}),),
    "optional secure boot": (Example({"os:secure_boot": "optional"}),),
    "blanks": (
        Example({"resources:VGPU": " 1 "}),
        Example({"hw:pmem": "6GB, 16GB"}),
        Example({"hw:pmem": ""}),
    ),
    "no claim": (Example({"hw:cpu_realtime_mask": "x"}),),
    "other spelling": (Example(image={"hw_video_model": "VGA"}), Example({"hw:mem_page_size": "1GiB"})),
    "riscv64": (Example(image={"hw_emulation_architecture": "riscv64"}),),
    "half a cell": (Example({"hw:numa_nodes": "1", "hw:numa_mem.0": "4096"}),),
}
"""{name of a sentence on what nova alone refuses: examples, for which the claim is made}"""


def examples(rows: dict[str, tuple[Example, ...]]) -> list[Any]:
    return [
        pytest.param(example, id=f"{name}-{number}")
        for name, each in rows.items()
        for number, example in enumerate(each)
    ]


@pytest.mark.parametrize("example", examples(REFUSED))
def test_the_claim_refuses_what_the_page_says_that_nova_accepts(example: Example) -> None:
    with pytest.raises(UsageError):
        ask(example)


@pytest.mark.parametrize("example", examples(MADE))
def test_the_claim_is_made_where_the_page_says_that_nova_refuses(example: Example) -> None:
    assert ask(example).groups


def test_each_row_has_an_example() -> None:
    """A row of the page without a test fails here."""
    assert {row.key for row in CLAIM_SPECS} == {*SPECS, *OF_GROUPS}
    assert {row.key for row in TRAIT_PROPERTIES} == {*IMAGES}
    assert REFUSED.keys() == REFUSED_HERE.keys() and MADE.keys() == REFUSED_BY_NOVA.keys()

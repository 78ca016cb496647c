"""Every extra spec is known with what it asks for, known not to change a claim, or refused."""

from __future__ import annotations

from typing import Any

import os_traits
import pytest

from agent.claims.extra_specs import (
    CLAIM_SPECS,
    ENCRYPTION_TRAITS,
    IMAGE_NO_CLAIM,
    NAMESPACES,
    NO_CLAIM,
    TRAIT_PROPERTIES,
    check_known,
    encryption_trait,
    host_traits,
    parse_image,
    properties_without_effect,
    read_flag,
    without_effect,
)
from agent.claims.parse_request import Flavor, claim_for_flavor, parse_flavor
from agent.errors import UsageError


@pytest.mark.parametrize(
    "key",
    [
        *(spec.key.replace(".N", ".7") for spec in CLAIM_SPECS if "[S]" not in spec.key),
        *(key.replace("*", "anything") for key in NO_CLAIM),
        *("ssd", "my:key", "quotas_of_mine"),
    ],
)
def test_a_known_spec_or_one_of_nobody_is_accepted(key: str) -> None:
    check_known(key)


@pytest.mark.parametrize(
    "namespace", sorted({*NAMESPACES} - {"capabilities", "aggregate_instance_extra_specs"})
)
def test_an_unknown_spec_of_a_known_namespace_is_refused_with_the_nearest(namespace: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {namespace}:"):
        check_known(f"{namespace}:no_such_spec")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("hw:numa_node", "hw:numa_nodes"),
        ("hw:numa_cpus", "hw:numa_cpus.0"),
        ("hw:cpu_polcy", "hw:cpu_policy"),
        ("group-policy", "group_policy"),
        ("resource:VGPU", "resources:VGPU"),
        ("quota:cpu_share", "quota:cpu_shares"),
        ("quotas:cpu_shares", "quota:cpu_shares"),
        ("traits:CUSTOM_A", "trait:CUSTOM_A"),
        ("os:secure_bot", "os:secure_boot"),
        ("accel:profile", "accel:device_profile"),
        ("acel:anything", "accel:anything"),
        ("quotaa:vif", "quota:vif"),
        ("hw_rng:allow", "hw_rng:allowed"),
        ("TRAIT:CUSTOM_A", "trait:CUSTOM_A"),
        ("Trait:CUSTOM_A", "trait:CUSTOM_A"),
        ("trait.1:CUSTOM_A", "trait:CUSTOM_A"),
        ("trait 1:CUSTOM_A", "trait:CUSTOM_A"),
        (f"resources{'a' * 65}:VGPU", "resources:VGPU"),
        ("RESOURCES:VGPU", "resources:VGPU"),
        ("HW:numa_cpus.0", "hw:numa_cpus.0"),
        ("Quota:cpu_shares", "quota:cpu_shares"),
        ("ACCEL:profile", "accel:profile"),
        ("Capabilities:free", "capabilities:free"),
        ("hw_cpu_policy", "hw:cpu_policy"),
        ("hw_numa_cpus.1", "hw:numa_cpus.0"),
        ("OS_Secure_Boot", "os:secure_boot"),
    ],
)
def test_a_misspelt_spec_is_refused_with_the_nearest(key: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {near}"):
        check_known(key)


def test_no_spec_is_in_both_lists() -> None:
    keys = [spec.key for spec in CLAIM_SPECS]
    assert len(keys) == len(set(keys)) and not set(keys) & NO_CLAIM.keys()
    assert not {row.key for row in TRAIT_PROPERTIES} & IMAGE_NO_CLAIM.keys()


def test_truth_values_are_those_of_nova() -> None:
    assert all(read_flag("hw:pmu", text) for text in ("1", "T", "true", "On", "y", " yes "))
    assert not any(read_flag("hw:pmu", text) for text in ("0", "F", "false", "Off", "n", "no"))
    with pytest.raises(UsageError, match="hw:pmu: '2'"):
        read_flag("hw:pmu", "2")


@pytest.mark.parametrize(
    ("spec", "needs", "of_image"),
    [
        ("hw:tpm_model", "hw:tpm_version", "hw_tpm_version"),
        ("hw:tpm_secret_security", "hw:tpm_version", "hw_tpm_version"),
        ("hw:mem_encryption_model", "hw:mem_encryption", "hw_mem_encryption"),
        ("hw:ephemeral_encryption_format", "hw:ephemeral_encryption", "hw_ephemeral_encryption"),
        ("hw:cpu_realtime_mask", "hw:cpu_realtime", None),
    ],
)
def test_a_spec_that_another_must_accompany_is_told_without_it(
    spec: str, needs: str, of_image: str | None
) -> None:
    """nova asks for nothing then, and says nothing."""
    assert without_effect({spec: "x"}, {}) == (f"{spec} has no effect without {needs}",)
    assert without_effect({spec: "x", needs: "x"}, {}) == ()
    if of_image:
        assert without_effect({spec: "x"}, {of_image: "x"}) == ()


CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
UEFI = {"hw_firmware_type": "uefi"}


@pytest.mark.parametrize("length", [1024, 1025])
def test_the_value_of_an_image_property_has_a_longest_text(length: int) -> None:
    with pytest.raises(UsageError) as refused:
        parse_image({"hw_no_such_property": "x" * length})
    assert ("1025 characters are too many; at most 1024" in refused.value.message) is (length > 1024)


def of(image: dict[str, Any], specs: dict[str, str] | None = None) -> Any:
    return claim_for_flavor(CONSUMER, Flavor(4, 4096, 10, specs or {}), parse_image(image))


@pytest.mark.parametrize(
    ("image", "traits"),
    [
        ({"hw_disk_bus": "virtio", "hw_cdrom_bus": "sata"}, {"STORAGE_BUS_VIRTIO", "STORAGE_BUS_SATA"}),
        ({"hw_video_model": "none"}, {"GRAPHICS_MODEL_NONE"}),
        ({"hw_vif_model": "ne2k-pci"}, {"NET_VIF_MODEL_NE2K_PCI"}),
        ({"hw_vif_model": "VirtualE1000e"}, {"NET_VIF_MODEL_E1000E"}),
        ({"hw_emulation_architecture": "aarch64"}, {"ARCH_AARCH64"}),
        ({"hw_viommu_model": "virtio"}, {"VIOMMU_MODEL_VIRTIO"}),
        ({**UEFI, "hw_firmware_stateless": "true"}, {"SECURITY_STATELESS_FIRMWARE"}),
        ({"hw_firmware_stateless": True}, set()),
        ({"os_secure_boot": "required"}, {"SECURITY_UEFI_SECURE_BOOT"}),
        ({"os_secure_boot": "optional"}, set()),
        ({"hw_tpm_version": "2.0", "hw_tpm_model": "tpm-crb"}, {"SECURITY_TPM_2_0", "SECURITY_TPM_CRB"}),
        ({"hw_sound_model": "virtio"}, {"SOUND_MODEL_VIRTIO"}),
        ({"hw_virtio_packed_ring": True}, {"NET_VIRTIO_PACKED"}),
        (
            {"hw_ephemeral_encryption": "yes", "hw_ephemeral_encryption_format": "luks"},
            {"EPHEMERAL_ENCRYPTION", "EPHEMERAL_ENCRYPTION_LUKS"},
        ),
        ({"hw_maxphysaddr_mode": "emulate"}, {"ADDRESS_SPACE_EMULATED"}),
        ({"base_image_ref": "x", "min_ram": 0, "owner": "y"}, set()),
    ],
)
def test_a_property_asks_for_traits_of_the_root(image: dict[str, Any], traits: set[str]) -> None:
    wanted = {f"COMPUTE_{trait}" for trait in traits}
    assert of(image).root_required == wanted <= set(os_traits.get_traits())


@pytest.mark.parametrize("key", ["hw_architecture", "architecture"])
@pytest.mark.parametrize(("value", "trait"), [("amd64", "X86_64"), ("i586", "I686"), ("ppc64le", "PPC64LE")])
def test_an_architecture_is_known_by_its_other_names(key: str, value: str, trait: str) -> None:
    assert of({key: value}).root_required == {f"HW_ARCH_{trait}"}


def test_a_required_trait_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"image trait:HW_CPU_X86_AVX22: .* did you mean HW_CPU_X86_AVX2\?"):
        of({"trait:HW_CPU_X86_AVX22": "required"})


@pytest.mark.parametrize(
    ("image", "specs", "cpus", "policy"),
    [
        ({"hw_cpu_policy": "dedicated"}, {}, {"PCPU": 4}, "dedicated"),
        ({"hw_cpu_policy": "shared"}, {"hw:cpu_policy": "dedicated"}, {"PCPU": 4}, "dedicated"),
        (
            {"hw_cpu_realtime_mask": "0-1"},
            {"hw:cpu_policy": "mixed", "hw:cpu_realtime": "true", "hw:cpu_realtime_mask": "3"},
            {"VCPU": 2, "PCPU": 2},
            "mixed",
        ),
    ],
)
def test_the_image_says_how_cpus_are_pinned(
    image: dict[str, Any], specs: dict[str, str], cpus: dict[str, int], policy: str
) -> None:
    request = of(image, specs)
    assert request.resources == {**cpus, "MEMORY_MB": 4096, "DISK_GB": 10}
    assert request.topology.cpu_policy == policy


@pytest.mark.parametrize(
    ("image", "specs", "why"),
    [
        ({"hw_cpu_policy": "dedicated"}, {"hw:cpu_policy": "shared"}, "hw:cpu_policy=shared"),
        ({"hw_cpu_policy": "mixed"}, {"hw:cpu_policy": "shared"}, "hw:cpu_policy=shared"),
        (
            {"hw_cpu_thread_policy": "require"},
            {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate"},
            "hw:cpu_thread_policy=isolate",
        ),
        ({"hw_numa_nodes": "2"}, {"hw:numa_nodes": "2"}, "hw:numa_nodes=2"),
        ({"hw_numa_cpus.0": "0"}, {"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3"}, "hw_numa_cpus.0=0"),
        ({"hw_mem_page_size": "2MB"}, {}, "the flavor has no hw:mem_page_size"),
        ({"hw_mem_page_size": "2MB"}, {"hw:mem_page_size": "1GB"}, "only large and any"),
        ({"hw_tpm_version": "1.2"}, {"hw:tpm_version": "2.0"}, "hw:tpm_version=2.0"),
        ({"os_secure_boot": "disabled"}, {"os:secure_boot": "required"}, "os:secure_boot=required"),
        ({"hw_sound_model": "ac97"}, {"hw:sound_model": "virtio"}, "hw:sound_model=virtio"),
        ({"hw_maxphysaddr_mode": "emulate"}, {"hw:maxphysaddr_mode": "passthrough"}, "exclude each other"),
        ({"hw_virtio_packed_ring": "false"}, {"hw:virtio_packed_ring": "yes"}, "exclude each other"),
        ({"hw_mem_encryption": "no", **UEFI}, {"hw:mem_encryption": "true"}, "exclude each other"),
        ({"hw_pci_numa_affinity_policy": "required"}, {"hw:pci_numa_affinity_policy": "legacy"}, "legacy"),
        ({"hw_mem_encryption": "true"}, {}, "hw_firmware_type: .* needs uefi"),
        (
            {"hw_mem_encryption": "true", **UEFI, "hw_machine_type": "pc-i440fx"},
            {},
            "hw_machine_type: .* q35",
        ),
        ({**UEFI}, {"hw:mem_encryption": "1", "hw:mem_encryption_model": "intel-tdx"}, "firmware_stateless"),
        ({"hw_disk_bus": "punched_cards"}, {}, "hw_disk_bus"),
        ({"hw_firmware_type": "UEFI", "hw_firmware_stateless": "yes"}, {}, "hw_firmware_type"),
        ({"trait:HW_CPU_X86_AVX2": "forbidden"}, {}, "required"),
        ({"trait:avx": "required"}, {}, "does not name a trait"),
        ({"hw_tpm_versoin": "2.0"}, {}, "did you mean hw_tpm_version?"),
        ({"hw_numa_cpus": "0"}, {}, "did you mean hw_numa_cpus.0?"),
        ({"os_secureboot": "required"}, {}, "did you mean os_secure_boot?"),
        ({"hw_disk_bus": ["virtio"]}, {}, "a text"),
        ({"architecture": "i686", "hw_architecture": "x86_64"}, {}, "given twice"),
    ],
)
def test_what_nova_refuses_and_what_is_unknown_is_refused(
    image: dict[str, Any], specs: dict[str, str], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        of(image, specs)


def test_equal_words_of_the_flavor_and_the_image_are_no_conflict() -> None:
    both = of({"hw_virtio_packed_ring": "1"}, {"hw:virtio_packed_ring": "true"})
    assert both == of({"hw_virtio_packed_ring": "1"})


@pytest.mark.parametrize(
    ("specs", "traits"),
    [
        ({}, set()),
        ({"hw:tpm_model": "tpm-crb", "hw:tpm_secret_security": "user"}, set()),
        ({"os:secure_boot": "disabled"}, set()),
        ({"hw:maxphysaddr_mode": "passthrough"}, {os_traits.COMPUTE_ADDRESS_SPACE_PASSTHROUGH}),
        ({"hw:ephemeral_encryption_format": "luks"}, set()),
        ({"hw:ephemeral_encryption": "no"}, set()),
        ({"hw:virtio_packed_ring": "off"}, set()),
        ({"hw:sound_model": "ich9"}, set()),
        ({"hw:viommu_model": "smmuv3"}, {os_traits.COMPUTE_VIOMMU_MODEL_SMMUV3}),
    ],
)
def test_a_spec_asks_for_the_traits_that_nova_asks_for(specs: dict[str, str], traits: set[str]) -> None:
    """Beside the rows of the page, each of which has an example in test_nova_rows."""
    assert host_traits(specs) == traits


def test_every_trait_is_a_standard_one() -> None:
    asked = [
        host_traits({spec: value})
        for spec, values in {
            "hw:viommu_model": ("intel", "smmuv3", "virtio", "auto"),
            "hw:maxphysaddr_mode": ("passthrough", "emulate"),
        }.items()
        for value in values
    ]
    asked += [
        host_traits({"hw:ephemeral_encryption": "yes", "hw:ephemeral_encryption_format": name})
        for name in ("plain", "luks", "luksv2")
    ]
    assert frozenset().union(*asked, ENCRYPTION_TRAITS.values()) <= frozenset(os_traits.get_traits())


@pytest.mark.parametrize(
    ("specs", "trait"),
    [
        ({}, None),
        ({"hw:mem_encryption": "false", "hw:mem_encryption_model": "amd-sev"}, None),
        ({"hw:mem_encryption_model": "amd-sev"}, None),
        ({"hw:mem_encryption": "true"}, os_traits.HW_CPU_X86_AMD_SEV),
        (
            {"hw:mem_encryption": "on", "hw:mem_encryption_model": "amd-sev-snp"},
            os_traits.HW_CPU_X86_AMD_SEV_SNP,
        ),
        (
            {"hw:mem_encryption": "on", "hw:mem_encryption_model": "intel-tdx"},
            os_traits.HW_CPU_X86_INTEL_TDX,
        ),
    ],
)
def test_memory_encryption_is_by_sev_unless_a_model_is_named(
    specs: dict[str, str], trait: str | None
) -> None:
    assert encryption_trait(specs) == trait


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ({"hw:tpm_version": "3.0"}, "hw:tpm_version"),
        ({"hw:tpm_model": "tpm-fifo"}, "hw:tpm_model"),
        ({"hw:tpm_version": "1.2", "hw:tpm_model": "tpm-crb"}, "tpm-crb needs hw:tpm_version=2.0"),
        ({"hw:tpm_secret_security": "nobody"}, "hw:tpm_secret_security"),
        ({"os:secure_boot": "sure"}, "os:secure_boot"),
        ({"hw:ephemeral_encryption_format": "rot13"}, "hw:ephemeral_encryption_format"),
        ({"hw:virtio_packed_ring": "round"}, "not a truth value"),
    ],
)
def test_a_value_that_nova_refuses_is_refused(specs: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        host_traits(specs)


def test_what_changes_no_claim_is_told_with_its_reason() -> None:
    for key, reason in IMAGE_NO_CLAIM.items():
        assert properties_without_effect([key]) == (f"image {key} has no effect on the claim: {reason}",)
    assert properties_without_effect(["my_key", "hw_numa_nodes"]) == (
        "image my_key has no effect: it is no image property of nova",
    )
    assert without_effect({"my:key": "1", "resources:VGPU": "1"}, {}) == (
        "my:key has no effect: it is no extra spec of nova",
    )


def test_a_name_of_a_spec_or_a_property_has_a_longest_text() -> None:
    for length, is_refused in ((255, False), (256, True)):
        name = "x" * length
        for parse in (
            lambda name=name: parse_image({name: "1"}),
            lambda name=name: parse_flavor({"vcpus": 1, "memory_mb": 1, "extra_specs": {name: "1"}}),
        ):
            if is_refused:
                with pytest.raises(UsageError, match="at most 255 are possible"):
                    parse()
            else:
                parse()

"""The extra specs that ask for an ability of the host: traits of its root, as in nova."""

from __future__ import annotations

import os_traits
import pytest

from agent.claims.host_traits import ENCRYPTION_TRAITS, encryption_trait, host_traits
from agent.errors import UsageError

TIS, V2 = os_traits.COMPUTE_SECURITY_TPM_TIS, os_traits.COMPUTE_SECURITY_TPM_2_0


@pytest.mark.parametrize(
    ("specs", "traits"),
    [
        ({}, set()),
        ({"hw:tpm_version": "2.0"}, {TIS, V2}),
        ({"hw:tpm_version": "1.2"}, {TIS, os_traits.COMPUTE_SECURITY_TPM_1_2}),
        (
            {"hw:tpm_version": "2.0", "hw:tpm_model": "tpm-crb"},
            {os_traits.COMPUTE_SECURITY_TPM_CRB, V2},
        ),
        (
            {"hw:tpm_version": "2.0", "hw:tpm_secret_security": "host"},
            {TIS, V2, os_traits.COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST},
        ),
        ({"hw:tpm_model": "tpm-crb", "hw:tpm_secret_security": "user"}, set()),
        ({"os:secure_boot": "required"}, {os_traits.COMPUTE_SECURITY_UEFI_SECURE_BOOT}),
        ({"os:secure_boot": "disabled"}, set()),
        ({"hw:maxphysaddr_mode": "passthrough"}, {os_traits.COMPUTE_ADDRESS_SPACE_PASSTHROUGH}),
        ({"hw:maxphysaddr_mode": "emulate"}, {os_traits.COMPUTE_ADDRESS_SPACE_EMULATED}),
        ({"hw:ephemeral_encryption": "true"}, {os_traits.COMPUTE_EPHEMERAL_ENCRYPTION}),
        (
            {"hw:ephemeral_encryption": "1", "hw:ephemeral_encryption_format": "luks"},
            {os_traits.COMPUTE_EPHEMERAL_ENCRYPTION, os_traits.COMPUTE_EPHEMERAL_ENCRYPTION_LUKS},
        ),
        ({"hw:ephemeral_encryption_format": "luks"}, set()),
        ({"hw:ephemeral_encryption": "no"}, set()),
        ({"hw:virtio_packed_ring": "yes"}, {os_traits.COMPUTE_NET_VIRTIO_PACKED}),
        ({"hw:virtio_packed_ring": "off"}, set()),
        ({"hw:sound_model": "virtio"}, {os_traits.COMPUTE_SOUND_MODEL_VIRTIO}),
        ({"hw:sound_model": "ich9"}, set()),
        ({"hw:viommu_model": "smmuv3"}, {os_traits.COMPUTE_VIOMMU_MODEL_SMMUV3}),
    ],
)
def test_a_spec_asks_for_the_traits_that_nova_asks_for(specs: dict[str, str], traits: set[str]) -> None:
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

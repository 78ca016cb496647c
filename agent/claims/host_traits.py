"""What a flavor and its image ask of the host as a whole: traits of the root provider. Pure.

Source: nova 34, nova/scheduler/utils.py and nova/scheduler/request_filter.py; the rows are in
agent.claims.extra_specs and agent.claims.image.
"""

from collections.abc import Mapping

from agent.claims.extra_specs import read_flag
from agent.errors import UsageError
from agent.json_checks import fault

ENCRYPTION_TRAITS: Mapping[str, str] = {
    "amd-sev": "HW_CPU_X86_AMD_SEV",
    "amd-sev-es": "HW_CPU_X86_AMD_SEV_ES",
    "amd-sev-snp": "HW_CPU_X86_AMD_SEV_SNP",
    "intel-tdx": "HW_CPU_X86_INTEL_TDX",
}
"""{hw:mem_encryption_model: the trait of the provider that gives MEM_ENCRYPTION_CONTEXT}"""

STATELESS_FIRMWARE = "COMPUTE_SECURITY_STATELESS_FIRMWARE"

_CHOICES: Mapping[str, Mapping[str, str | None]] = {
    "os:secure_boot": {
        "required": "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
        "optional": None,
        "disabled": None,
    },
    "hw:maxphysaddr_mode": {
        "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
        "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
    },
    "hw:sound_model": {
        "virtio": "COMPUTE_SOUND_MODEL_VIRTIO",
        **dict.fromkeys(("sb16", "es1370", "pcspk", "ac97", "ich6", "ich9", "usb")),
    },
    "hw:viommu_model": {
        model: f"COMPUTE_VIOMMU_MODEL_{model.upper()}" for model in ("intel", "smmuv3", "virtio", "auto")
    },
}
"""{spec: {value: the trait that it asks for, or None}}"""

_TPM_VERSIONS = {"1.2": "COMPUTE_SECURITY_TPM_1_2", "2.0": "COMPUTE_SECURITY_TPM_2_0"}
_TPM_MODELS = {"tpm-tis": "COMPUTE_SECURITY_TPM_TIS", "tpm-crb": "COMPUTE_SECURITY_TPM_CRB"}
_TPM_SECRETS = {
    keeper: f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{keeper.upper()}"
    for keeper in ("user", "host", "deployment")
}
_FORMATS = {name: f"COMPUTE_EPHEMERAL_ENCRYPTION_{name.upper()}" for name in ("plain", "luks", "luksv2")}


def host_traits(specs: Mapping[str, str]) -> frozenset[str]:
    """The traits that the specs ask of the host's root. Raises UsageError, naming the spec at fault."""
    traits = {_choice(specs, spec, values) for spec, values in _CHOICES.items()}
    traits |= _tpm_traits(specs)
    encryption_format = _choice(specs, "hw:ephemeral_encryption_format", _FORMATS)
    if _flag(specs, "hw:ephemeral_encryption"):
        traits |= {"COMPUTE_EPHEMERAL_ENCRYPTION", encryption_format}
    if _flag(specs, "hw:virtio_packed_ring"):
        traits.add("COMPUTE_NET_VIRTIO_PACKED")
    return frozenset(trait for trait in traits if trait is not None)


def encryption_trait(specs: Mapping[str, str]) -> str | None:
    """The trait of the guest's memory encryption, or None. Raises UsageError, naming the spec at fault."""
    trait = _choice(specs, "hw:mem_encryption_model", ENCRYPTION_TRAITS)
    if not _flag(specs, "hw:mem_encryption"):
        return None
    return trait or ENCRYPTION_TRAITS["amd-sev"]


def _tpm_traits(specs: Mapping[str, str]) -> set[str | None]:
    version = _choice(specs, "hw:tpm_version", _TPM_VERSIONS)
    model = _choice(specs, "hw:tpm_model", _TPM_MODELS)
    secrets = _choice(specs, "hw:tpm_secret_security", _TPM_SECRETS)
    if version is None:
        return set()
    if specs.get("hw:tpm_model") == "tpm-crb" and specs["hw:tpm_version"] != "2.0":
        raise UsageError("hw:tpm_model: tpm-crb needs hw:tpm_version=2.0.", spec="hw:tpm_model")
    return {version, model or _TPM_MODELS["tpm-tis"], secrets}


def _choice(specs: Mapping[str, str], spec: str, values: Mapping[str, str | None]) -> str | None:
    value = specs.get(spec)
    if value is None:
        return None
    if value not in values:
        raise fault(spec, f"one of {', '.join(values)}", value)
    return values[value]


def _flag(specs: Mapping[str, str], spec: str) -> bool:
    return spec in specs and read_flag(spec, specs[spec])

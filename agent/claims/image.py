"""The properties of a guest's image, as glance has them, that change a claim. Pure.

A property that says the same as an extra spec (agent.claims.extra_specs, `image`) becomes that spec, by
nova's rules for a flavor and an image that both say something. The others ask for traits of the host's root.
An unknown property that begins with hw_, os_ or img_ is refused; all other names belong to other services.

Source: nova 34, nova/objects/image_meta.py, nova/virt/hardware.py and nova/scheduler/request_filter.py.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from agent.claims.extra_specs import CLAIM_SPECS, read_flag
from agent.claims.near_names import unknown_trait
from agent.errors import UsageError
from agent.json_checks import below, fault, read_object, read_text

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


VALUE_MAX = 1024


@dataclass(frozen=True, slots=True)
class ImageProperty:
    """An image property that is no extra spec and changes a claim; the texts are those of `ExtraSpec`."""

    key: str
    nova: str
    claim: str
    difference: str = ""


_PREFILTER = "nova asks only with `[scheduler] image_metadata_prefilter` (off by default), and then for none "
_PREFILTER += "of these properties if one of them has no trait; the claim asks for each, always"

_TRAIT_STARTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "hw_cdrom_bus": (
        "COMPUTE_STORAGE_BUS_",
        buses := frozenset({"fdc", "ide", "lxc", "sata", "scsi", "uml", "usb", "virtio", "xen"}),
    ),
    "hw_disk_bus": ("COMPUTE_STORAGE_BUS_", buses),
    "hw_video_model": (
        "COMPUTE_GRAPHICS_MODEL_",
        frozenset({"bochs", "cirrus", "gop", "none", "qxl", "vga", "virtio", "vmvga", "xen"}),
    ),
    "hw_vif_model": (
        "COMPUTE_NET_VIF_MODEL_",
        frozenset({"e1000", "e1000e", "igb", "lan9118", "ne2k_pci", "netfront", "pcnet", "rtl8139"})
        | {"spapr_vlan", "sriov", "virtio", "vmxnet", "vmxnet3"},
    ),
    "hw_architecture": (
        "HW_ARCH_",
        frozenset({"aarch64", "alpha", "armv6", "armv7", "armv7b", "cris", "i686", "ia64", "lm32", "m68k"})
        | {"microblaze", "microblazeel", "mips", "mips64", "mips64el", "mipsel", "openrisc", "parisc"}
        | {"parisc64", "ppc", "ppc64", "ppc64le", "ppcemb", "ppcle", "s390", "s390x", "sh4", "sh4eb"}
        | {"sparc", "sparc64", "unicore32", "x86_64", "xtensa", "xtensaeb"},
    ),
    "hw_emulation_architecture": (
        "COMPUTE_ARCH_",
        frozenset({"aarch64", "mipsel", "ppc64le", "riscv64", "s390x", "x86_64"}),
    ),
}
"""{property: (start of the trait, values for which os-traits has one)}"""

_ARCHITECTURES = {**dict.fromkeys(("i386", "i486", "i586", "x86_32", "x86_32p"), "i686"), "amd64": "x86_64"}
_CARDS = {
    **{f"virtual{card}": card for card in ("e1000", "e1000e", "vmxnet", "vmxnet3")},
    "virtualpcnet32": "pcnet",
    "virtualsriovethernetcard": "sriov",
}
_FORMER_VALUES: Mapping[str, Mapping[str, str]] = {
    "hw_architecture": _ARCHITECTURES,
    "hw_emulation_architecture": _ARCHITECTURES,
    "hw_vif_model": _CARDS,
}
"""{property: {another name of a value: the value}}"""

TRAIT_PROPERTIES = (
    *(
        ImageProperty(key, f"{start}<VALUE> of the root, upper case, `-` as `_`", "the same", _PREFILTER)
        for key, (start, _) in _TRAIT_STARTS.items()
    ),
    ImageProperty("trait:TRAIT", "required in the unsuffixed group; only `required` is a value", "the same"),
    ImageProperty(
        "hw_firmware_stateless",
        "with hw_firmware_type=uefi: COMPUTE_SECURITY_STATELESS_FIRMWARE; without it nothing",
        "the same, of the root",
    ),
    ImageProperty("hw_firmware_type", "nothing by itself", "the same"),
    ImageProperty("hw_machine_type", "nothing; a guest with encrypted memory must have q35", "the same"),
)
"""The image properties that are no extra spec and change a claim."""

_AS_SPEC: Mapping[str, str] = {spec.image: spec.key for spec in CLAIM_SPECS if spec.image}
_FLAGS = frozenset({"hw_mem_encryption", "hw_ephemeral_encryption", "hw_virtio_packed_ring"})
_CELL = re.compile(r"(hw_numa_cpus|hw_numa_mem)\.([0-9]{1,4})", re.ASCII)
_TRAIT = re.compile(r"trait:([A-Z0-9_]{1,255})", re.ASCII)
_FIRMWARES = ("bios", "uefi")
_LEGACY = {"architecture": "hw_architecture"}
"""Former names that nova still reads, of properties that change a claim."""

_GUEST = "it only shapes the guest"
_FILTER = "nova's scheduler chooses among hosts by it; a claim concerns one host"
_BUILD = "it says how the guest's disk is made"

NO_CLAIM: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("hw_boot_menu", "hw_cpu_cores", "hw_cpu_sockets", "hw_cpu_threads", "hw_cpu_max_cores"),
            *("hw_cpu_max_sockets", "hw_cpu_max_threads", "hw_device_id", "hw_floppy_bus", "hw_input_bus"),
            *("hw_ipxe_boot", "hw_locked_memory", "hw_maxphysaddr_bits", "hw_pointer_model", "hw_pmu"),
            *("hw_qemu_guest_agent", "hw_redirected_usb_ports", "hw_rescue_bus", "hw_rescue_device"),
            *("hw_rng_model", "hw_scsi_model", "hw_serial_port_count", "hw_time_hpet", "hw_usb_model"),
            *("hw_video_ram", "hw_vif_multiqueue_enabled", "hw_watchdog_action", "img_config_drive"),
            *("img_hide_hypervisor_id", "img_use_agent", "os_admin_user", "os_command_line", "os_distro"),
            *("os_require_quiesce", "os_skip_agent_inject_files_at_boot", "os_skip_agent_inject_ssh"),
            *("os_type", "os_version", "hw_ephemeral_encryption_secret_uuid"),
        ),
        _GUEST,
    ),
    **dict.fromkeys(("hw_vm_mode", "img_hv_type", "img_hv_requested_version"), _FILTER),
    **dict.fromkeys(
        (
            *("hw_auto_disk_config", "hw_disk_type", "img_bdm_v2", "img_bittorrent", "img_linked_clone"),
            *("img_block_device_mapping", "img_cache_in_nova", "img_compression_level", "img_mappings"),
            *("img_owner_id", "img_root_device_name", "img_signature", "img_signature_hash_method"),
            *("img_signature_certificate_uuid", "img_signature_key_type", "img_version"),
        ),
        _BUILD,
    ),
}
"""{image property of nova that changes no claim: why}"""

_KNOWN = frozenset({*NO_CLAIM, *_AS_SPEC, *(row.key for row in TRAIT_PROPERTIES)} - {"trait:TRAIT"})
_PREFIXES = ("hw_", "os_", "img_")

Image = Mapping[str, str]
"""{property: text}"""


def parse_image(value: object, path: str = "image") -> Image:
    """The properties of an image from parsed JSON: {property: text, number or truth value}.

    Raises UsageError, naming the path of the value at fault.
    """
    image = {}
    for given, item in read_object(value, path).items():
        item_path = below(path, given)
        key = _LEGACY.get(given, given)
        read_text(key, item_path, wanted="a name of at most 255 characters")
        text = str(item).lower() if isinstance(item, bool | int) else item
        if key in image:
            raise UsageError(f"{item_path}: {key} is given twice.", path=item_path)
        if not key.startswith((*_PREFIXES, "trait:")):
            continue
        image[key] = read_text(text, item_path, wanted="a text", longest=VALUE_MAX)
        _check_known(key)
    return image


def _check_known(key: str) -> None:
    if _CELL.sub(r"\1.N", key) in _KNOWN:
        return
    if key.startswith("trait:"):
        if not _TRAIT.fullmatch(key):
            raise UsageError(f"image {key}: it does not name a trait.", spec=key)
        return
    near = get_close_matches(key, sorted(_KNOWN), n=1, cutoff=0.0)
    raise UsageError(
        f"image {key}: unknown image property; did you mean {near[0].replace('.N', '.0')}?", spec=key
    )


def properties_without_effect(properties: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each image property that a claim does not depend on."""
    sentences = []
    for key in properties:
        reason = NO_CLAIM.get(_LEGACY.get(key, key))
        if reason is not None:
            sentences.append(f"image {key} has no effect on the claim: {reason}")
        elif key not in _LEGACY and not key.startswith((*_PREFIXES, "trait:")):
            sentences.append(f"image {key} has no effect: it is no image property of nova")
    return tuple(sentences)


def image_traits(image: Image) -> frozenset[str]:
    """The traits that the properties ask of the host's root. Raises UsageError, naming the property."""
    traits = set()
    for key, (start, known) in _TRAIT_STARTS.items():
        if key in image:
            value = image[key].strip().lower().replace("-", "_")
            value = _FORMER_VALUES.get(key, {}).get(value, value)
            if value not in known:
                raise fault(f"image {key}", f"one of {', '.join(sorted(known))}", image[key])
            traits.add(start + value.upper())
    firmware = image.get("hw_firmware_type", "uefi")
    if firmware not in _FIRMWARES:
        raise fault("image hw_firmware_type", f"one of {', '.join(_FIRMWARES)}", firmware)
    if _is_stateless(image):
        traits.add(STATELESS_FIRMWARE)
    return frozenset(traits)


def required_traits(image: Image) -> frozenset[str]:
    """The traits that the image requires by `trait:TRAIT=required`.

    Raises UsageError for another value, and for a trait that there is not.
    """
    names = set()
    for key, value in image.items():
        match = _TRAIT.fullmatch(key)
        if match and value != "required":
            raise fault(f"image {key}", "required", value)
        if match:
            unknown = unknown_trait(match[1])
            if unknown:
                raise UsageError(f"image {key}: {unknown}", spec=key)
            names.add(match[1])
    return frozenset(names)


def check_encryption(image: Image, trait: str) -> None:
    """Check that the image can have its memory encrypted by the model with this trait.

    Raises UsageError where nova refuses the image.
    """
    if image.get("hw_firmware_type") != "uefi":
        raise UsageError("image hw_firmware_type: a guest with encrypted memory needs uefi.")
    if "q35" not in image.get("hw_machine_type", "q35"):
        raise fault(
            "image hw_machine_type", "q35 for a guest with encrypted memory", image["hw_machine_type"]
        )
    if trait.endswith(("_SEV_SNP", "_TDX")) and not _is_stateless(image):
        raise UsageError(f"image hw_firmware_stateless: memory encryption by {trait} needs it to be true.")


def _is_stateless(image: Image) -> bool:
    key = "hw_firmware_stateless"
    return image.get("hw_firmware_type") == "uefi" and read_flag(f"image {key}", image.get(key, "false"))


def with_image(specs: Mapping[str, str], image: Image) -> dict[str, str]:
    """The extra specs, with what the image says in addition or instead.

    Raises UsageError where both speak, differ, and nova refuses that.
    """
    merged = dict(specs)
    for key, value in image.items():
        cell = _CELL.fullmatch(key)
        spec = f"{_AS_SPEC[f'{cell[1]}.N'][:-1]}{cell[2]}" if cell else _AS_SPEC.get(key)
        if spec is None:
            continue
        if key == "hw_mem_page_size":
            # nova lets an image choose only where the flavor allows it to
            if specs.get(spec) not in ("any", "large"):
                raise _conflict(key, value, spec, specs.get(spec), "only large and any let the image choose")
            merged[spec] = value
        elif key == "hw_cpu_realtime_mask":
            merged[spec] = value
        elif cell:
            if any(one.startswith(spec.rpartition(".")[0]) for one in specs):
                raise _conflict(key, value, spec, specs.get(spec), "one of the two may have cells")
            merged[spec] = value
        elif spec not in specs:
            merged[spec] = value
        else:
            merged[spec] = _of_both(key, value, spec, specs[spec])
    return merged


def _of_both(key: str, value: str, spec: str, flavor: str) -> str:
    """The value that counts where the flavor and the image both have one."""
    refused = flavor != value
    if key in _FLAGS:
        refused = read_flag(spec, flavor) != read_flag(f"image {key}", value)
    elif key == "hw_numa_nodes":
        refused = True
    elif key == "hw_cpu_policy":
        refused = (flavor, value) in {("mixed", "dedicated"), ("shared", "mixed"), ("shared", "dedicated")}
    elif key == "hw_cpu_thread_policy":
        refused = flavor != "prefer" and flavor != value
    if refused:
        raise _conflict(key, value, spec, flavor, "they exclude each other")
    return flavor


def _conflict(key: str, value: str, spec: str, flavor: str | None, why: str) -> UsageError:
    says = f"the flavor has {spec}={flavor}" if flavor is not None else f"the flavor has no {spec}"
    return UsageError(f"image {key}={value}: {says}; {why}.", spec=spec)

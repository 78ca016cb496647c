"""Every extra spec of a flavor and every property of an image that change a claim, and those that do not.
Pure.

`agent.claims.parse_request` reads the specs of CLAIM_SPECS; NO_CLAIM lists the others that nova knows with
the reason why they change no claim. The page docs/nova-parity.md is generated from here. Nothing else of a
namespace in NAMESPACES is accepted.

A property that says the same as an extra spec (`ExtraSpec.image`) becomes that spec, by nova's rules for a
flavor and an image that both say something. The others ask for traits of the host's root. An unknown property
that begins with hw_, os_ or img_ is refused; all other names belong to other services.

Source: nova 34: nova/api/validation/extra_specs, nova/scheduler/utils.py, nova/scheduler/request_filter.py,
nova/objects/image_meta.py and nova/virt/hardware.py.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from agent.claims.near_names import meant_spec, unknown_trait
from agent.errors import UsageError
from agent.json_checks import below, fault, read_object, read_text

_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


@dataclass(frozen=True, slots=True)
class ExtraSpec:
    """An extra spec that changes a claim; `image` is the image property that asks for the same.

    `nova` says what nova's query asks for, `claim` what the claim asks for, `difference` what differs and
    why, or nothing. In `key`, N stands for the number of a cell, [S] for the suffix of a group.
    """

    key: str
    nova: str
    claim: str
    difference: str = ""
    image: str = ""


CLAIM_SPECS = (
    ExtraSpec(
        "resources[S]:CLASS",
        "the amount in the unsuffixed group, or in group S; in any group, it replaces the flavor's VCPU "
        "or PCPU, MEMORY_MB or DISK_GB; 0 removes it",
        "the same; `resources:PCPU` pins the guest's CPUs as `hw:cpu_policy=dedicated` does",
        "PCPU in group S is refused: dedicated CPUs are those of the guest's cells. The memory of a guest "
        "with cells is that of the unsuffixed group, which must have some; nova gives the cells the "
        "flavor's, also where Placement was asked for another amount",
    ),
    ExtraSpec(
        "trait[S]:TRAIT",
        "required or forbidden in the unsuffixed group, or in group S",
        "the same",
        "nova ignores any other value with a warning; the claim is refused",
    ),
    ExtraSpec(
        "group_policy",
        "none or isolate",
        "the same",
        "nova ignores any other value with a warning; the claim is refused",
    ),
    ExtraSpec(
        "same_subtree",
        "nothing: nova takes it from ports only",
        "one of the groups' providers is above the others",
        "not a spec of nova",
    ),
    ExtraSpec(
        "plimsoll:orN:KEY",
        "nothing: nova keeps it with the flavor, and asks for the first alternative alone",
        "the Nth alternative, N from 2, is the flavor with this text in place of that of KEY; an empty text "
        "takes KEY away. The first alternative that fits is claimed, and a move keeps it",
        "not a spec of nova: this agent's own. A number that is left out, and KEY in a spelling that is "
        "refused for a flavor, are refused",
    ),
    ExtraSpec(
        "pci_passthrough:alias",
        "a group for each device, if `[filter_scheduler] pci_in_placement` is set",
        "a group for each device, always",
        "nova also requires OWNER_NOVA of the provider. The claim also requires the trait of device_type, "
        "HW_PCI_LIVE_MIGRATABLE as live_migratable says, and the traits of vendor_id and product_id beside a "
        "resource_class: nova compares these on the host it has chosen. Traits of an alias may be in lower "
        "case and have blanks around them, and ids fewer digits; a count of 0 is refused",
    ),
    ExtraSpec(
        "accel:device_profile",
        "the groups of Cyborg's device profile, and COMPUTE_ACCELERATORS of the root",
        "the same groups, of the profile in the file that [claims] device_profiles names; a profile that is "
        "not there is refused",
        "the agent does not ask Cyborg, and programs no device; COMPUTE_ACCELERATORS is not asked for: it "
        "says that a control plane has Cyborg",
    ),
    ExtraSpec(
        "hw:cpu_policy",
        "VCPU; PCPU; or with `mixed` PCPU for the dedicated or realtime mask, and VCPU for the rest",
        "the same, with the exact CPUs",
        image="hw_cpu_policy",
    ),
    ExtraSpec(
        "hw:cpu_dedicated_mask",
        "which CPUs of a `mixed` guest are PCPU",
        "the same",
    ),
    ExtraSpec(
        "hw:cpu_realtime",
        "with `mixed` and without a dedicated mask: PCPU for the CPUs of the realtime mask",
        "the same",
        "a `mixed` guest whose CPUs are all in the mask is refused: it is `dedicated`",
    ),
    ExtraSpec(
        "hw:cpu_realtime_mask",
        "with hw:cpu_realtime: see there",
        "the same",
        image="hw_cpu_realtime_mask",
    ),
    ExtraSpec(
        "hw:cpu_thread_policy",
        "isolate: HW_CPU_HYPERTHREADING forbidden; require: required",
        "exact on the host's cores: isolate withholds the siblings, require gives whole cores",
        "the trait is not asked for: a host with threads serves isolated guests, too",
        image="hw_cpu_thread_policy",
    ),
    ExtraSpec(
        "hw:emulator_threads_policy",
        "isolate: one more PCPU; share: nothing",
        "isolate: one more PCPU, an exact CPU on the host cell of the guest's cell 0; share: nothing",
    ),
    ExtraSpec("hw:numa_nodes", "nothing; a filter", "exact cells", image="hw_numa_nodes"),
    ExtraSpec("hw:numa_cpus.N", "nothing; a filter", "exact cells", image="hw_numa_cpus.N"),
    ExtraSpec("hw:numa_mem.N", "nothing; a filter", "exact cells", image="hw_numa_mem.N"),
    ExtraSpec(
        "hw:mem_page_size",
        "nothing; a filter",
        "exact pages of the host's cells, as inventory",
        image="hw_mem_page_size",
    ),
    ExtraSpec(
        "hw:pci_numa_affinity_policy",
        "socket: COMPUTE_SOCKET_PCI_NUMA_AFFINITY required; the rest is a filter",
        "exact for each policy",
        "the trait is not asked for: the claim is refused where the sockets are unknown",
        image="hw_pci_numa_affinity_policy",
    ),
    ExtraSpec(
        "hw:mem_encryption",
        "MEM_ENCRYPTION_CONTEXT=1 and the trait of the model, in the unsuffixed group; the image must have "
        "hw_firmware_type=uefi, no machine type but q35, and for SEV-SNP and TDX stateless firmware",
        "the same",
        "what the image must have is checked only if the claim has image properties",
        image="hw_mem_encryption",
    ),
    ExtraSpec(
        "hw:mem_encryption_model",
        "with hw:mem_encryption: HW_CPU_X86_AMD_SEV (the default), _AMD_SEV_ES, _AMD_SEV_SNP or _INTEL_TDX",
        "the same",
        image="hw_mem_encryption_model",
    ),
    ExtraSpec(
        "hw:pmem",
        "CUSTOM_PMEM_NAMESPACE_<LABEL>=1 for each label; the guest has a cell of its own",
        "the same",
    ),
    ExtraSpec(
        "hw:tpm_version",
        "COMPUTE_SECURITY_TPM_1_2 or _2_0, the trait of the model, and that of the secret's security",
        "the first two, of the root",
        "COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER, nova's default, is asked for only if the flavor names "
        "hw:tpm_secret_security: it is a promise of a control plane with a key manager",
        image="hw_tpm_version",
    ),
    ExtraSpec(
        "hw:tpm_model",
        "with hw:tpm_version: COMPUTE_SECURITY_TPM_TIS (the default) or _CRB, which needs 2.0",
        "the same, of the root",
        image="hw_tpm_model",
    ),
    ExtraSpec(
        "hw:tpm_secret_security",
        "with hw:tpm_version: COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER, _HOST or _DEPLOYMENT of the root",
        "the same",
    ),
    ExtraSpec(
        "os:secure_boot",
        "required: COMPUTE_SECURITY_UEFI_SECURE_BOOT",
        "the same, of the root",
        image="os_secure_boot",
    ),
    ExtraSpec(
        "hw:maxphysaddr_mode",
        "COMPUTE_ADDRESS_SPACE_PASSTHROUGH or _EMULATED",
        "the same, of the root",
        image="hw_maxphysaddr_mode",
    ),
    ExtraSpec(
        "hw:ephemeral_encryption",
        "COMPUTE_EPHEMERAL_ENCRYPTION of the root",
        "the same",
        image="hw_ephemeral_encryption",
    ),
    ExtraSpec(
        "hw:ephemeral_encryption_format",
        "with hw:ephemeral_encryption: COMPUTE_EPHEMERAL_ENCRYPTION_<FORMAT> of the root",
        "the same",
        image="hw_ephemeral_encryption_format",
    ),
    ExtraSpec(
        "hw:virtio_packed_ring",
        "COMPUTE_NET_VIRTIO_PACKED of the root",
        "the same",
        image="hw_virtio_packed_ring",
    ),
    ExtraSpec(
        "hw:sound_model",
        "virtio: COMPUTE_SOUND_MODEL_VIRTIO of the root; other models nothing",
        "the same",
        image="hw_sound_model",
    ),
    ExtraSpec(
        "hw:viommu_model",
        "nothing; the image property asks for COMPUTE_VIOMMU_<MODEL>, a trait that does not exist, and then "
        "none of the image's traits is asked for",
        "COMPUTE_VIOMMU_MODEL_<MODEL> of the root, for the spec and for the property",
        "nova's scheduler does not find out that a host lacks the model",
        image="hw_viommu_model",
    ),
)
"""The extra specs that change a claim, in the order of the page."""

_GUEST = "it only shapes the guest's virtual hardware"
_LIMIT = "the hypervisor enforces it on the guest; nothing of the host is set aside for it"
_FILTER = "nova's scheduler chooses among hosts by it; a claim concerns one host"

NO_CLAIM: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("hw:boot_menu", "hw:hide_hypervisor_id", "hw:pmu", "hw:serial_port_count"),
            *("hw:watchdog_action", "hw:pointer_model", "hw:redirected_usb_ports", "hw:usb_model"),
            *("hw:vif_multiqueue_enabled", "hw:cpu_cores", "hw:cpu_sockets", "hw:cpu_threads"),
            *("hw:cpu_max_cores", "hw:cpu_max_sockets", "hw:cpu_max_threads", "hw:max_cpu_cores"),
            *("hw:max_cpu_sockets", "hw:max_cpu_threads", "hw_rng:allowed", "hw_rng:rate_bytes"),
            *("hw_rng:rate_period", "hw_video:ram_max_mb", "hide_hypervisor_id"),
        ),
        _GUEST,
    ),
    "hw:locked_memory": "the guest's memory is claimed in full, locked or not; nova refuses it without a "
    "page size, the claim does not",
    "hw:maxphysaddr_bits": "hw:maxphysaddr_mode asks for the host's ability; the number is the guest's",
    **dict.fromkeys(
        (
            *("quota:cpu_limit", "quota:cpu_period", "quota:cpu_quota", "quota:cpu_reservation"),
            *("quota:cpu_shares", "quota:cpu_shares_level", "quota:cpu_shares_share"),
            *("quota:disk_io_limit", "quota:disk_io_reservation", "quota:disk_io_shares_level"),
            *("quota:disk_io_shares_share", "quota:disk_read_bytes_sec", "quota:disk_read_iops_sec"),
            *("quota:disk_total_bytes_sec", "quota:disk_total_iops_sec", "quota:disk_write_bytes_sec"),
            *("quota:disk_write_iops_sec", "quota:memory_limit", "quota:memory_reservation"),
            *("quota:memory_shares_level", "quota:memory_shares_share", "quota:vif_inbound_average"),
            *("quota:vif_inbound_burst", "quota:vif_inbound_peak", "quota:vif_limit"),
            *("quota:vif_outbound_average", "quota:vif_outbound_burst", "quota:vif_outbound_peak"),
            *("quota:vif_reservation", "quota:vif_shares_level", "quota:vif_shares_share"),
        ),
        _LIMIT,
    ),
    "capabilities:*": _FILTER,
    "aggregate_instance_extra_specs:*": _FILTER,
    **dict.fromkeys(("vmware:hw_version", "vmware:storage_policy"), "it is for another hypervisor"),
}
"""{extra spec of nova that changes no claim: why}; `*` stands for any name. Other keys without a colon, and
other namespaces, are not nova's: they name properties of aggregates, and change no claim."""

_CLAIM_KEYS = tuple(spec.key for spec in CLAIM_SPECS if "[S]" not in spec.key)
_KNOWN = frozenset(key for key in (*_CLAIM_KEYS, *NO_CLAIM) if "*" not in key)
_FREE = ("plimsoll:or", *(key.removesuffix("*") for key in NO_CLAIM if key.endswith("*")))
_UNSCOPED = tuple(key for key in sorted(_KNOWN) if ":" not in key)
_OF_IMAGES = {spec.image: spec.key for spec in CLAIM_SPECS if spec.image}
NAMESPACES = (
    "resources",
    "trait",
    *sorted({key.partition(":")[0] for key in (*_KNOWN, *_FREE) if ":" in key}),
)
"""The namespaces of nova's extra specs, and this agent's own."""

_GROUP_KEY = re.compile(r"(resources|trait)[A-Za-z0-9_-]*:", re.ASCII)
_CELL = re.compile(r"(hw[:_]numa_(?:cpus|mem)\.)[0-9]{1,4}", re.ASCII)
_GROUP_STARTS = ("resource", "trait")


def check_known(key: str) -> None:
    """Check that the extra spec is known; those of groups are not checked here.

    Raises UsageError, with the nearest known name, for an unknown one in a namespace of nova, or near one.
    """
    name = _CELL.sub(r"\1N", key)
    if name in _KNOWN or name.startswith(_FREE):
        return
    meant = meant_spec(key, _KNOWN)
    if meant is not None:
        _refuse(key, meant)
    namespace, colon, rest = key.partition(":")
    word = namespace.strip().lower()
    if not colon:
        near = get_close_matches(word, _UNSCOPED, cutoff=0.85)
        of_image = _OF_IMAGES.get(_CELL.sub(r"\1N", word))
        if of_image or near:
            _refuse(key, of_image or near[0])
    elif namespace in NAMESPACES:
        own = [known for known in sorted(_KNOWN) if known.startswith(f"{namespace}:")]
        _refuse(key, (get_close_matches(key, own, cutoff=0.0) or [f"{namespace}:CLASS"])[0])
    elif word in NAMESPACES:
        _refuse(key, f"{word}:{rest}")
    elif word.startswith(_GROUP_STARTS):
        _refuse(key, f"{'resources' if word.startswith('resource') else 'trait'}:{rest}")
    else:
        near = get_close_matches(word, NAMESPACES, cutoff=0.85)
        if near:
            _refuse(key, f"{near[0]}:{rest}")


def _refuse(key: str, near: str) -> NoReturn:
    raise UsageError(f"{key}: unknown extra spec; did you mean {near.replace('.N', '.0')}?", spec=key)


_NEEDS: Mapping[str, str] = {
    "hw:tpm_model": "hw:tpm_version",
    "hw:tpm_secret_security": "hw:tpm_version",
    "hw:mem_encryption_model": "hw:mem_encryption",
    "hw:ephemeral_encryption_format": "hw:ephemeral_encryption",
    "hw:cpu_realtime_mask": "hw:cpu_realtime",
}
"""{spec: the one without which nova asks for nothing by it}"""


def without_effect(specs: Collection[str], image: Collection[str]) -> tuple[str, ...]:
    """A sentence for each spec that the claim does not depend on, beside the properties of an image."""
    sentences = []
    for key in specs:
        namespace, colon, _ = key.partition(":")
        reason = NO_CLAIM.get(key) or NO_CLAIM.get(f"{namespace}:*")
        needed = _NEEDS.get(key, key)
        if reason is not None:
            sentences.append(f"{key} has no effect on the claim: {reason}")
        elif needed not in specs and not {row.image for row in CLAIM_SPECS if row.key == needed} & {*image}:
            sentences.append(f"{key} has no effect without {needed}")
        elif not (colon and _GROUP_KEY.match(key)) and _CELL.sub(r"\1N", key) not in _KNOWN:
            sentences.append(f"{key} has no effect: it is no extra spec of nova")
    return tuple(sentences)


def read_flag(spec: str, text: str) -> bool:
    """The truth value of a spec or an image property, in nova's words. Raises UsageError for any other."""
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise UsageError(f"{spec}: {text!r} is not a truth value such as true or false.", spec=spec)
    return word in _TRUE


REFUSED_HERE: Mapping[str, str] = {
    "unknown": "an unknown image property that begins with `hw_`, `os_` or `img_`, and an extra spec whose "
    "namespace is nearly one of nova's (`quotas:cpu_shares`): nova ignores them",
    "group policy": "two suffixed groups or more without `group_policy`: Placement refuses nova's query",
    "group without resources": "a group with traits and without resources that no `same_subtree` names: "
    "Placement refuses nova's query",
    "required and forbidden": "a trait that is both required and forbidden: Placement refuses nova's query",
    "cells without number": "`hw:numa_cpus.N` or `hw:numa_mem.N` without `hw:numa_nodes`, or for some of the "
    "cells only: nova ignores them",
    "conflict over nothing": "a flavor and an image that differ over what neither asks for, such as "
    "`hw:tpm_model` without `hw:tpm_version`: nova does not look at it",
    "property twice": "an image property under its present and a former name: nova takes the present one",
    "all realtime": "a `mixed` guest whose CPUs are all in the realtime mask: it is `dedicated`",
    "spelling": "a spec of nova in another spelling (`TRAIT:`, `trait.1:`, `HW:numa_nodes`), or under the "
    "name of the image property: nova ignores it",
    "group of CPUs": "`resourcesS:PCPU`: dedicated CPUs are those of the guest's cells; and "
    "`resourcesS:VCPU` beside `hw:cpu_policy` or `resources:PCPU`, which nova refuses only where S is a "
    "number",
    "cells without memory": "a guest with cells whose memory is in a suffixed group alone, or removed by "
    "`resources:MEMORY_MB=0`: nova gives the cells memory that Placement does not count",
    "nothing": "a flavor whose specs remove all that it asks for: Placement refuses nova's query",
    "no trait": "an image property whose value has no trait (`hw_architecture=armv7l`): no host reports it",
    "no such trait": "`trait:TRAIT` of an image, where os-traits has no such trait: Placement refuses nova's "
    "query",
    "no word": "an image's truth value that is none, which nova takes for false, and an image's trait with "
    "another value than `required`, which nova ignores",
    "bits": "a page size in bits (`2Mb`)",
}
"""{name: a flavor or an image that nova accepts and the claim refuses}; a test finds no others."""

REFUSED_BY_NOVA: Mapping[str, str] = {
    "encryption without image": "memory encryption where no image properties are known: what the image must "
    "have cannot be checked",
    "locked memory": "`hw:locked_memory` without a page size: it does not change the claim",
    "threads of shared CPUs": "`trait:HW_CPU_HYPERTHREADING` without pinned CPUs: it is a trait like others",
    "optional secure boot": "`os:secure_boot=optional`, which nova allows for images only",
    "blanks": "blanks around a number, and between the labels of `hw:pmem`, or no label at all",
    "no claim": "a value of a spec that changes no claim, such as `hw:cpu_realtime_mask` without "
    "`hw:cpu_realtime`: it is not looked at",
    "other spelling": "an image property in other letters (`hw_video_model=VGA`), and a page size as `1G` or "
    "`1GiB`",
    "riscv64": "`hw_emulation_architecture=riscv64`: there is a trait of it, and nova does not know the name",
    "half a cell": "cells with CPUs and without memory, or the reverse: the other is split evenly",
}
"""{name: a flavor or an image that nova refuses and the claim accepts}; a test finds no others."""


# The properties of an image

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
    version = _choice(specs, "hw:tpm_version", _TPM_VERSIONS)
    model = _choice(specs, "hw:tpm_model", _TPM_MODELS)
    secrets = _choice(specs, "hw:tpm_secret_security", _TPM_SECRETS)
    if version is not None:
        if specs.get("hw:tpm_model") == "tpm-crb" and specs["hw:tpm_version"] != "2.0":
            raise UsageError("hw:tpm_model: tpm-crb needs hw:tpm_version=2.0.", spec="hw:tpm_model")
        traits |= {version, model or _TPM_MODELS["tpm-tis"], secrets}
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
_CELL_PROPERTY = re.compile(r"(hw_numa_cpus|hw_numa_mem)\.([0-9]{1,4})", re.ASCII)
_TRAIT = re.compile(r"trait:([A-Z0-9_]{1,255})", re.ASCII)
_FIRMWARES = ("bios", "uefi")
_LEGACY = {"architecture": "hw_architecture"}
"""Former names that nova still reads, of properties that change a claim."""

_ONLY_GUEST = "it only shapes the guest"

_BUILD = "it says how the guest's disk is made"

IMAGE_NO_CLAIM: Mapping[str, str] = {
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
        _ONLY_GUEST,
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

_KNOWN_PROPERTIES = frozenset(
    {*IMAGE_NO_CLAIM, *_AS_SPEC, *(row.key for row in TRAIT_PROPERTIES)} - {"trait:TRAIT"}
)
_PREFIXES = ("hw_", "os_", "img_")

Image = Mapping[str, str]
"""{property: text}"""


def parse_image(value: object) -> Image:
    """The properties of an image from parsed JSON: {property: text, number or truth value}.

    Raises UsageError, naming the path of the value at fault.
    """
    image = {}
    for given, item in read_object(value, "image").items():
        item_path = below("image", given)
        key = _LEGACY.get(given, given)
        read_text(key, item_path, wanted="a name of at most 255 characters")
        text = str(item).lower() if isinstance(item, bool | int) else item
        if key in image:
            raise UsageError(f"{item_path}: {key} is given twice.", path=item_path)
        if not key.startswith((*_PREFIXES, "trait:")):
            continue
        image[key] = read_text(text, item_path, wanted="a text", longest=VALUE_MAX)
        if key.startswith("trait:"):
            if not _TRAIT.fullmatch(key):
                raise UsageError(f"image {key}: it does not name a trait.", spec=key)
        elif _CELL_PROPERTY.sub(r"\1.N", key) not in _KNOWN_PROPERTIES:
            near = get_close_matches(key, sorted(_KNOWN_PROPERTIES), cutoff=0.0)
            raise UsageError(
                f"image {key}: unknown image property; did you mean {near[0].replace('.N', '.0')}?", spec=key
            )
    return image


def properties_without_effect(properties: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each image property that a claim does not depend on."""
    sentences = []
    for key in properties:
        reason = IMAGE_NO_CLAIM.get(_LEGACY.get(key, key))
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
        cell = _CELL_PROPERTY.fullmatch(key)
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

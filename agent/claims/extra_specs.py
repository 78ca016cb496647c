"""Every extra spec of a flavor that nova knows: what nova asks for, and what a claim asks for. Pure.

`agent.claims.flavor` and `agent.claims.flavor` read those of CLAIM_SPECS; NO_CLAIM lists the others with
the reason why they change no claim. The page docs/nova-parity.md is generated from here. Nothing else of a
namespace in NAMESPACES is accepted.

Source: nova 34: nova/api/validation/extra_specs, nova/scheduler/utils.py, nova/scheduler/request_filter.py.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

from agent.claims.near_names import meant_spec
from agent.errors import UsageError

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
_FREE = tuple(key.removesuffix("*") for key in NO_CLAIM if key.endswith("*"))
_UNSCOPED = tuple(key for key in sorted(_KNOWN) if ":" not in key)
_OF_IMAGES = {spec.image: spec.key for spec in CLAIM_SPECS if spec.image}
NAMESPACES = (
    "resources",
    "trait",
    *sorted({key.partition(":")[0] for key in (*_KNOWN, *_FREE) if ":" in key}),
)
"""The namespaces of nova's extra specs."""

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
        near = get_close_matches(word, _UNSCOPED, n=1, cutoff=0.85)
        of_image = _OF_IMAGES.get(_CELL.sub(r"\1N", word))
        if of_image or near:
            _refuse(key, of_image or near[0])
    elif namespace in NAMESPACES:
        own = [known for known in sorted(_KNOWN) if known.startswith(f"{namespace}:")]
        _refuse(key, (get_close_matches(key, own, n=1, cutoff=0.0) or [f"{namespace}:CLASS"])[0])
    elif word in NAMESPACES:
        _refuse(key, f"{word}:{rest}")
    elif word.startswith(_GROUP_STARTS):
        _refuse(key, f"{'resources' if word.startswith('resource') else 'trait'}:{rest}")
    else:
        near = get_close_matches(word, NAMESPACES, n=1, cutoff=0.85)
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

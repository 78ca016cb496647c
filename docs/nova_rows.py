"""What nova's libvirt driver reports of a host, and what this one reports instead: docs/nova-parity.md. Pure.

Every standard trait and resource class has one row; `row_of` finds it. Source: nova 34,
nova/virt/libvirt/driver.py, nova/virt/driver.py and nova/compute/pci_placement_translator.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Reported(StrEnum):
    """Who puts the class or the trait into Placement."""

    YES = "yes"
    LEFT = "left to others"
    NO = "no"


@dataclass(frozen=True, slots=True)
class HostRow:
    """Classes or traits of the host: `names` are patterns, `nova` is nova's condition, `here` the agent's.

    `difference` says what differs and why, or nothing.
    """

    names: tuple[str, ...]
    nova: str
    here: str
    reported: Reported = Reported.YES
    difference: str = ""


_CONTROL_PLANE = "never; a trait that another program sets is kept"
_PROMISE = "it promises a feature of the control plane, which alone knows whether it has it"
_OTHER = "never"

RESOURCE_CLASSES: Sequence[HostRow] = (
    HostRow(("VCPU",), "CPUs of cpu_shared_set; reserved_host_cpus", "the same, on the root or on its cells"),
    HostRow(
        ("PCPU",),
        "CPUs of cpu_dedicated_set; offline ones with cpu_power_management, without it an error",
        "the same, with their ids as exact units",
        difference="An offline CPU without cpu_power_management is not offered, and takes nothing else away; "
        "`plimsoll doctor` names it. CPUs come up at the claim already (plimsoll-cpus.service), "
        "and with the guest at the latest (libvirt's hook), which takes them down when it has "
        "ended. nova powers all of them down when it starts, those of running guests too, and up "
        "again with the guests; here those that no claim and no guest has go down at a boot, "
        "before libvirt starts",
    ),
    HostRow(
        ("MEMORY_MB",),
        "the host's memory, or file_backed_memory; reserved_host_memory_mb, reserved_huge_pages",
        "the same, on the root or its cells",
        difference="the memory of reserved pages is not offered; file_backed_memory beside overcommit or "
        "reserved memory is an error",
    ),
    HostRow(
        ("DISK_GB",),
        "instances_path, LVM or RBD; reserved_host_disk_mb, and the image cache where configured",
        "images_path or storage_pools; reserved_host_disk_mb, and the image cache by image_cache_path",
        difference="the cache is a directory that the operator names: the agent has none",
    ),
    HostRow(
        ("VGPU",),
        "enabled_mdev_types: a provider for each card",
        "the same, also with several types a card, and exact units",
    ),
    HostRow(("PGPU", "FPGA", "PCI_DEVICE"), "only as resource_class of device_spec", "the same"),
    HostRow(
        ("SRIOV_NET_VF",),
        "never",
        "for virtual functions of network cards: a provider for each card",
        difference="nova leaves network devices out of Placement",
    ),
    HostRow(
        ("CUSTOM_VDPA",),
        "the class of device_spec or CUSTOM_PCI_*, for functions with a vDPA device",
        "for functions with a vDPA device, unless device_spec has a class: on the card's provider",
        difference="nova tells them apart by the type of device, which Placement does not know",
    ),
    HostRow(
        ("CUSTOM_PCI_*",),
        "device_spec without physical_network or devname, if report_in_placement is set",
        "device_spec, also with these",
        difference="always on; physical and virtual functions are offered until one is in use",
    ),
    HostRow(
        ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"),
        "never: Neutron's agents report it",
        "of network cards and Open vSwitch bridges for which it is configured",
    ),
    HostRow(
        ("CUSTOM_HUGEPAGES_*",),
        "never",
        "large pages: a provider for each size and cell",
        difference="nova keeps them out of Placement",
    ),
    HostRow(
        ("MEM_ENCRYPTION_CONTEXT",),
        "AMD SEV, SEV-ES or SEV-SNP, and with cpu_mode = host-passthrough Intel TDX: a provider each, with "
        "the processor's number of keys; num_intel_tdx_guests",
        "the same, by the same names; the traits are on these providers",
        difference="TDX with any cpu_mode: the program that starts the guest chooses its CPU. The lower of "
        "num_intel_tdx_guests and the number of keys counts, as nova documents; its code takes the option",
    ),
    HostRow(
        ("CUSTOM_SGX_EPC_MB",),
        "never",
        "memory for SGX enclaves: a provider for each cell, from libvirt 8.10",
        difference="nova has only the traits",
    ),
    HostRow(
        ("CUSTOM_CPULESS_MEMORY_MB",),
        "never: it is MEMORY_MB of the host",
        "memory of cells without CPUs (CXL, HBM, persistent memory as system RAM): a provider for each cell, "
        "with traits of its kind and its distance; offered by [libvirt] cpuless_memory",
        difference="never MEMORY_MB, nor are its large pages a class of pages",
    ),
    HostRow(
        ("CUSTOM_PMEM_NAMESPACE_*",),
        "[libvirt] pmem_namespaces: on the root; one that is not there is an error",
        "the same, with the namespaces' names as exact units",
        difference="a namespace that is not there is named in the status and not offered",
    ),
    HostRow(
        ("CUSTOM_VRAM_*",),
        "never",
        "[devices] vram_cards: virtual functions of GPUs by their VRAM, on the card's provider; their time, "
        "contexts and doorbells by execution_quanta and context_quotas",
        difference="nova has one class for all functions of a model, and does not read their VRAM",
    ),
    HostRow(
        ("NET_PACKET_RATE_*",),
        "never: Neutron's agents report it",
        "of Open vSwitch where it is configured; the providers of other services are kept",
    ),
    HostRow(
        ("NUMA_*", "IPV4_ADDRESS", "VGPU_DISPLAY_HEAD"),
        "never",
        _OTHER,
        Reported.NO,
    ),
)

TRAITS: Sequence[HostRow] = (
    HostRow(("COMPUTE_NODE",), "always", "always"),
    HostRow(
        ("COMPUTE_STATUS_DISABLED",),
        "while the compute service is disabled",
        "while the host is paused with `--schedulers`, or closed for longer than `closed_disable_after`",
        difference="set by others, it is kept, and does not close the host for local claims",
    ),
    HostRow(
        ("COMPUTE_SOCKET_PCI_NUMA_AFFINITY",), "always", "where libvirt reports the sockets of the cells"
    ),
    HostRow(("HW_CPU_HYPERTHREADING",), "a core with two threads", "a core with two threads online"),
    HostRow(
        ("HW_CPU_X86_*", "HW_CPU_AMD_SEV"),
        "flags of the CPU by cpu_mode, cpu_models, cpu_model_extra_flags",
        "the same",
        difference="host-model: the flags that libvirt gives such guests (nova: all of the host); a flag "
        "with a minus is not reported (nova reports it); 13 flags more, SSE3 among them (libvirt's pni)",
    ),
    HostRow(("HW_ARCH_*",), "the host's architecture", "the same"),
    HostRow(("COMPUTE_ARCH_*",), "architectures of guests", "the same"),
    HostRow(("COMPUTE_STORAGE_BUS_*",), "the domain capabilities", "the same"),
    HostRow(("COMPUTE_GRAPHICS_MODEL_*",), "the domain capabilities", "the same"),
    HostRow(
        ("COMPUTE_NET_VIF_MODEL_*",),
        "by virt_type; IGB from libvirt 9.3 and QEMU 8.0",
        "for x86 guests, IGB by the same versions",
        difference="SPAPR_VLAN and LAN9118 are missing: no x86 guest has them",
    ),
    HostRow(
        ("COMPUTE_SOUND_MODEL_*",),
        "seven always, VIRTIO from libvirt 10.4 and QEMU 8.2",
        "what libvirt reports; where it reports nothing, as nova",
    ),
    HostRow(
        ("COMPUTE_VIOMMU_MODEL_*",),
        "AUTO always; INTEL, SMMUV3 by architecture, VIRTIO from libvirt 8.3",
        "what libvirt reports; where it reports nothing, as nova; AUTO where there is any model",
    ),
    HostRow(
        ("COMPUTE_NET_VIRTIO_PACKED",),
        "always",
        "from libvirt 6.3 and QEMU 4.2",
    ),
    HostRow(
        ("COMPUTE_SECURITY_TPM_TIS", "COMPUTE_SECURITY_TPM_CRB", "COMPUTE_SECURITY_TPM_[12]_[02]"),
        "swtpm_enabled, and the domain capabilities",
        "the domain capabilities",
        difference="no option: what libvirt can do is reported",
    ),
    HostRow(
        ("COMPUTE_SECURITY_TPM_SECRET_SECURITY_*",),
        "swtpm_enabled and supported_tpm_secret_security (all three unless configured)",
        "as supported_tpm_secret_security lists; unless configured, never, and kept where another set it",
        Reported.LEFT,
        "it promises a key manager, so the operator lists it",
    ),
    HostRow(("COMPUTE_SECURITY_UEFI_SECURE_BOOT",), "the domain capabilities", "the same"),
    HostRow(("COMPUTE_SECURITY_STATELESS_FIRMWARE",), "from libvirt 8.6", "the same"),
    HostRow(("COMPUTE_ADDRESS_SPACE_*",), "from libvirt 8.7", "the same"),
    HostRow(("COMPUTE_STORAGE_VIRTIO_FS",), "the domain capabilities", "the same"),
    HostRow(
        ("COMPUTE_FIRMWARE_*",), "never", "the domain capabilities", difference="nova does not report them"
    ),
    HostRow(("COMPUTE_MEM_BACKING_FILE",), "file_backed_memory is set", "the same"),
    HostRow(
        ("COMPUTE_EPHEMERAL_ENCRYPTION*",),
        "the image backend encrypts",
        _CONTROL_PLANE,
        Reported.LEFT,
        _PROMISE,
    ),
    HostRow(
        ("COMPUTE_ACCELERATORS", "COMPUTE_CONFIG_DRIVE_REGENERATION", "COMPUTE_DEVICE_TAGGING"),
        "always, as capabilities of the driver",
        _CONTROL_PLANE,
        Reported.LEFT,
        _PROMISE,
    ),
    HostRow(
        ("COMPUTE_IMAGE_TYPE_*", "COMPUTE_NET_ATTACH_*", "COMPUTE_VOLUME_*", "COMPUTE_RESCUE_BFV"),
        "always, as capabilities of the driver",
        _CONTROL_PLANE,
        Reported.LEFT,
        _PROMISE,
    ),
    HostRow(
        ("COMPUTE_TRUSTED_CERTS", "COMPUTE_SAME_HOST_COLD_MIGRATE", "COMPUTE_SHARE_LOCAL_FS"),
        "by capabilities of the driver",
        _CONTROL_PLANE,
        Reported.LEFT,
        _PROMISE,
    ),
    HostRow(
        ("COMPUTE_REMOTE_MANAGED_PORTS",),
        "device_spec has remote_managed devices with a serial number (VPD), and libvirt 7.9; a physical "
        "function by its address or name is an error",
        "the same, for virtual functions; these are in no inventory",
        difference="nova keeps those without a physical_network in Placement",
    ),
    HostRow(("COMPUTE_MIGRATE_*", "COMPUTE_USB_MODEL_*"), "never", _OTHER, Reported.NO),
    HostRow(
        ("COMPUTE_MANAGED_PCI_DEVICE",),
        "on providers of PCI devices",
        "never",
        Reported.NO,
        "nova deletes a provider with this trait that it does not know",
    ),
    HostRow(
        ("OWNER_NOVA", "OWNER_CYBORG"),
        "on each provider of nova's",
        "never; a root that has one is left unchanged, and below the root it is kept",
        Reported.LEFT,
        "a scheduler of nova whose computes are all of nova 34 asks for it, and does not choose this host",
    ),
    HostRow(
        ("CUSTOM_OWNER_PLIMSOLL",),
        "never",
        "on each provider, in a Placement that others can read",
        difference="the owner's trait of this agent",
    ),
    HostRow(("HW_NUMA_ROOT",), "never", "on the providers of cells", difference="nova has no such providers"),
    HostRow(
        ("CUSTOM_PCIE_SWITCH", "CUSTOM_PCIE_ROOT_COMPLEX", "CUSTOM_GPU_LINK"),
        "never",
        "on providers of PCIe switches, root complexes or groups of GPUs, by [devices] report_pcie",
        difference="nova has no such providers",
    ),
    HostRow(
        ("HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE"),
        "by the keys of device_spec",
        "the same; the first one also where the host's driver of VFIO can migrate all functions of the card",
    ),
    HostRow(
        ("CUSTOM_VFIO_DRIVER_*",),
        "never",
        "which driver of VFIO can migrate the functions of the card; CUSTOM_VFIO_DRIVER_VFIO_PCI: none, as "
        "guests get the free ones under vfio-pci; CUSTOM_VFIO_IN_USE_*: which drivers those functions have "
        "that guests have of a card with several",
        difference="a live migration is refused where the destination has another one",
    ),
    HostRow(
        ("CUSTOM_VGPU_DRIVER_NVIDIA_*",),
        "never",
        "the branch of the host's vGPU driver, on cards with vGPUs",
        difference="a live migration is refused where the destination has an older one",
    ),
    HostRow(
        ("CUSTOM_MEMORY_CXL", "CUSTOM_MEMORY_HBM", "CUSTOM_MEMORY_PMEM", "CUSTOM_MEMORY_OTHER"),
        "never",
        "the kind of a cell without CPUs, on its provider; CUSTOM_MEMORY_DISTANCE_14 is its distance",
    ),
    HostRow(
        ("CUSTOM_CC", "CUSTOM_CC_ON", "CUSTOM_CC_DEVTOOLS", "CUSTOM_CC_OFF"),
        "never; nova documents that a guest with SEV has no passed-through devices",
        "a card's mode of confidential computing, by `cc_mode` of device_spec; if the card is in another, "
        "CUSTOM_CC and such as CUSTOM_CC_OFF_NOT_ON",
        difference="guests with SEV-SNP or TDX get cards with CUSTOM_CC_ON alone, other guests none with "
        "CUSTOM_CC",
    ),
    HostRow(
        ("HW_GPU_*", "HW_NIC_*", "STORAGE_DISK_*"),
        "never",
        "only as `traits` of device_spec or of a provider config file",
        Reported.LEFT,
    ),
    HostRow(("MISC_SHARES_VIA_AGGREGATE",), "never", "never; read on sharing providers", Reported.LEFT),
    HostRow(("HW_CPU_AARCH64_*", "HW_CPU_PPC64LE_*", "HW_NVME_*"), "never", _OTHER, Reported.NO),
)

DEVICES: Sequence[tuple[str, str, str]] = (
    (
        "a device over iommufd (`<driver iommufd='yes'/>`, or `<iommufd>` of the domain)",
        "never writes it",
        "read, gated, claimed and moved as any other; `plimsoll doctor --device` says which ways there are",
    ),
    (
        "MAC address and VLAN of a virtual function",
        "of macvtap ports set on the card at the guest's start; of others left to libvirt",
        "compared with the definition by the audit, and of a plain `<hostdev>` with what its card had; set "
        "again after a boot by [devices] restore_ports",
    ),
    ("MIG instances", "never", "made again after a boot by [devices] mig_instances, not offered as slices"),
    (
        "groups of GPUs that NVLink or XGMI joins",
        "never",
        "providers above cards by [devices] report_pcie, as a vendor's driver tells before VFIO has them",
    ),
)
"""(what, nova, here) of devices that no class, trait or spec is about."""


def row_of(name: str) -> HostRow | None:
    """The row of a resource class or of a trait; None: there is none."""
    for row in (*RESOURCE_CLASSES, *TRAITS):
        if any(fnmatchcase(name, pattern) for pattern in row.names):
            return row
    return None

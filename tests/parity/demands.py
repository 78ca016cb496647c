"""Random flavors and images, with every extra spec and image property that changes nova's query."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from parity.query import Demand

TRUTHS = ("true", "false", "yes", "no", "1", "0", "on", "off", "True")
BUSES = ("virtio", "scsi", "ide", "sata", "usb", "fdc", "xen", "uml", "lxc")

SPECS: dict[str, tuple[str, ...]] = {
    "resources:VGPU": ("0", "1", "2"),
    "resources:VCPU": ("1", "4", "0"),
    "resources:PCPU": ("1", "2", "4", "5", "8", "9"),
    "resources:MEMORY_MB": ("0", "512"),
    "resources:DISK_GB": ("0", "7"),
    "resources:CUSTOM_FPGA": ("1",),
    "resources1:VGPU": ("1",),
    "resources1:MEMORY_MB": ("256",),
    "resources1:PCPU": ("1", "4"),
    "resources1:VCPU": ("1", "4"),
    "resources1:DISK_GB": ("0", "3"),
    "resources:vgpu": ("1",),
    "resources:VGPUS": ("1",),
    "resources-x_1:CUSTOM_A": ("1", " 1 ", "x", "1.5"),
    "resources:MEM_ENCRYPTION_CONTEXT": ("1", "0"),
    "Resources:VGPU": ("1",),
    "TRAIT:CUSTOM_GPU": ("required",),
    "trait.1:CUSTOM_GPU": ("required",),
    "trait:HW_CPU_X86_AVX52": ("required", "forbidden"),
    "HW:numa_nodes": ("2",),
    "hw_cpu_policy": ("dedicated",),
    "resources_NET:SRIOV_NET_VF": ("1", "2"),
    "resources_NET:VCPU": ("1",),
    "trait:HW_CPU_X86_AVX2": ("required", "forbidden"),
    "trait:HW_CPU_HYPERTHREADING": ("required", "forbidden"),
    "trait1:CUSTOM_GPU": ("required", "forbidden"),
    "trait_NET:CUSTOM_RED": ("required",),
    "group_policy": ("none", "isolate"),
    "hw:cpu_policy": ("shared", "dedicated", "mixed", "pinned", "DEDICATED", " dedicated"),
    "hw:cpu_dedicated_mask": ("0", "^0", "0-1", "1-3", "9", "0-3,^1", "3-1", "a", ""),
    "hw:cpu_realtime": TRUTHS,
    "hw:cpu_realtime_mask": ("^0", "0-1", "^0-1", "1", "0-7", "0-3,^0", "x"),
    "hw:cpu_thread_policy": ("prefer", "isolate", "require"),
    "hw:emulator_threads_policy": ("isolate", "share", "none"),
    "hw:numa_nodes": ("1", "2", "3", "0", "x"),
    "hw:numa_cpus.0": ("0", "0-3"),
    "hw:numa_cpus.1": ("1", "1-3"),
    "hw:numa_mem.0": ("1024", "2048"),
    "hw:numa_mem.1": ("1024", "3072"),
    "hw:mem_page_size": ("small", "large", "any", "2MB", "2048", "1GB", "huge", "2Mb", "2mb", "1G"),
    "hw:pci_numa_affinity_policy": ("required", "preferred", "legacy", "socket"),
    "hw:mem_encryption": TRUTHS,
    "hw:mem_encryption_model": ("amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx", "rot13"),
    "hw:pmem": ("6GB", "6gb,6GB", "6GB, 16GB", "a-b", "a__b,_x", ""),
    "hw:tpm_version": ("1.2", "2.0", "3.0"),
    "hw:tpm_model": ("tpm-tis", "tpm-crb"),
    "hw:tpm_secret_security": ("user", "host", "deployment", "nobody"),
    "os:secure_boot": ("required", "disabled", "optional", "Required"),
    "hw:maxphysaddr_mode": ("passthrough", "emulate"),
    "hw:maxphysaddr_bits": ("42",),
    "hw:ephemeral_encryption": TRUTHS,
    "hw:ephemeral_encryption_format": ("luks", "plain", "luksv2", "rot13"),
    "hw:virtio_packed_ring": (*TRUTHS, "maybe"),
    "hw:sound_model": ("virtio", "ich9", "ac97", "loud"),
    "hw:viommu_model": ("intel", "smmuv3", "virtio", "auto"),
    "hw:watchdog_action": ("reset",),
    "hw:locked_memory": ("true", "false"),
    "hw:no_such_spec": ("1",),
    "accel:device_profile": ("fpga1", "fpga2", "fpga3"),
    "quota:cpu_shares": ("100", "many"),
    "quota:no_such_spec": ("1",),
    "accel:no_such_spec": ("1",),
    "hw_rng:allowed": ("true",),
    "capabilities:hypervisor_type": ("QEMU",),
    "free": ("1",),
}

PROFILES: dict[str, list[dict[str, str]]] = {
    "fpga1": [{"resources:FPGA": "1", "trait:CUSTOM_ARRIA10": "required", "accel:bitstream_id": "d5ca2f11"}],
    "fpga2": [{"resources:FPGA": "2", "trait:CUSTOM_OLD": "forbidden"}, {"resources:CUSTOM_NVME": "1"}],
}
"""{name: groups} of the device profiles that both sides know"""

IMAGE: dict[str, tuple[str, ...]] = {
    "hw_cdrom_bus": BUSES,
    "hw_disk_bus": BUSES,
    "hw_video_model": ("VGA", "vga", "virtio", "qxl", "none", "bochs", "gop", "cirrus", "vmvga", "xen"),
    "hw_vif_model": (
        "virtio",
        "e1000",
        "ne2k_pci",
        "VirtualE1000",
        "igb",
        "spapr-vlan",
        "virtualsriovethernetcard",
    ),
    "hw_architecture": ("x86_64", "amd64", "i686", "i386", "aarch64", "ppc64le", "armv7l", "vax"),
    "architecture": ("x86_64",),
    "hw_emulation_architecture": ("aarch64", "riscv64", "x86_64"),
    "hw_viommu_model": ("intel", "auto"),
    "hw_firmware_type": ("uefi", "bios", "UEFI"),
    "hw_firmware_stateless": TRUTHS,
    "hw_machine_type": ("q35", "pc-q35-9.0", "pc"),
    "hw_mem_encryption": TRUTHS,
    "hw_mem_encryption_model": ("amd-sev", "amd-sev-es", "amd-sev-snp", "intel-tdx"),
    "hw_cpu_policy": ("shared", "dedicated", "mixed"),
    "hw_cpu_thread_policy": ("prefer", "isolate", "require"),
    "hw_cpu_realtime_mask": ("^0", "0-1"),
    "hw_numa_nodes": ("1", "2"),
    "hw_numa_cpus.0": ("0", "0-3"),
    "hw_numa_cpus.1": ("1-3",),
    "hw_numa_mem.0": ("1024",),
    "hw_numa_mem.1": ("3072",),
    "hw_mem_page_size": ("small", "2MB", "1GB"),
    "hw_pci_numa_affinity_policy": ("required", "legacy", "socket"),
    "hw_tpm_version": ("1.2", "2.0"),
    "hw_tpm_model": ("tpm-tis", "tpm-crb"),
    "os_secure_boot": ("required", "disabled", "optional"),
    "hw_maxphysaddr_mode": ("passthrough", "emulate"),
    "hw_ephemeral_encryption": TRUTHS,
    "hw_ephemeral_encryption_format": ("luks", "plain"),
    "hw_virtio_packed_ring": (*TRUTHS, "maybe"),
    "hw_sound_model": ("virtio", "ich9"),
    "trait:HW_CPU_X86_AVX2": ("required",),
    "trait:HW_CPU_X86_AVX512F": ("required", "Required"),
    "trait:HW_CPU_HYPERTHREADING": ("required",),
    "os_type": ("linux",),
    "hw_qemu_guest_agent": ("yes",),
    "owner_specified.x": ("1",),
    "hw_no_such_property": ("1",),
}

CELLED = {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "1-3"} | {
    "hw:numa_mem.0": "1024",
    "hw:numa_mem.1": "3072",
}


def random_demands(count: int, seed: int) -> Iterator[Demand]:
    """`count` flavors with up to five specs each; half of them with an image of up to five properties."""
    random = Random(seed)
    for _ in range(count):
        specs = _some(random, SPECS)
        if random.random() < 0.1:
            specs |= CELLED
        image = _some(random, IMAGE) if random.random() < 0.5 else None
        yield Demand(random.choice((1, 2, 4, 8)), 4096, random.choice((0, 10)), specs, image)


def _some(random: Random, values: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {key: random.choice(values[key]) for key in random.sample(sorted(values), random.randint(0, 5))}

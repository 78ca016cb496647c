"""The resource classes and traits of devices in Placement, for drivers and for claims. Pure.

Names are normalised in the same way as by nova. Source:
https://docs.openstack.org/nova/latest/configuration/config.html#pci.device_spec
"""

import re
from collections.abc import Collection, Iterable
from functools import cache

NAME_MAX = 255
LIVE_MIGRATABLE = "HW_PCI_LIVE_MIGRATABLE"
ONE_TIME_USE = "HW_PCI_ONE_TIME_USE"
TYPES = {"type-PCI": "CUSTOM_PCI_TYPE_PCI", "type-PF": "CUSTOM_PCI_TYPE_PF", "type-VF": "CUSTOM_PCI_TYPE_VF"}
"""{nova's device_type: trait}; type-PF is a physical function that can have virtual functions."""

CONTEXT = "MEM_ENCRYPTION_CONTEXT"
CONFIDENTIAL = frozenset({"HW_CPU_X86_AMD_SEV_SNP", "HW_CPU_X86_INTEL_TDX"})
"""The kinds of memory encryption whose guests get no card but one that is confidential, too."""

CC, CC_ON, CC_DEVTOOLS = "CUSTOM_CC", "CUSTOM_CC_ON", "CUSTOM_CC_DEVTOOLS"
"""The traits of a card in a confidential mode; CC without both others: no guest of its host can have it."""
CC_MODES = {
    "on": frozenset({CC, CC_ON}),
    "devtools": frozenset({CC, CC_DEVTOOLS}),
    "off": frozenset({"CUSTOM_CC_OFF"}),
}
"""{a card's mode of confidential computing, as an operator states it: its traits}"""

CC_WRONG = {
    f"CUSTOM_CC_{real}_NOT_{stated}".upper(): (real, stated)
    for real in CC_MODES
    for stated in CC_MODES
    if real != stated
}
"""{trait of a card in another mode than is stated: (its real mode, the stated one)}"""

VDPA_CLASS, VDPA_TRAIT = "CUSTOM_VDPA", "CUSTOM_PCI_TYPE_VDPA"
"""The class of functions that guests get over vDPA without a configured one, and the trait of all of them."""

PORTS = frozenset({"SRIOV_NET_VF", VDPA_CLASS})
"""The classes of ports: they carry what leaves the guest, and a live migration gives it others."""

MIGRATION_DRIVER_PREFIX = "CUSTOM_VFIO_DRIVER_"
"""How the trait begins that names the driver of VFIO which migrates the functions of a card."""

DRIVER_IN_USE_PREFIX = "CUSTOM_VFIO_IN_USE_"
"""How the traits begin that name the drivers of VFIO of the functions that guests have of a mixed card."""

PLAIN_VFIO, PLAIN_VFIO_TRAIT = "vfio-pci", f"{MIGRATION_DRIVER_PREFIX}VFIO_PCI"
"""VFIO's own driver, which migrates nothing; the trait of a card whose free functions guests get under it."""

VGPU_DRIVER_PREFIX = "CUSTOM_VGPU_DRIVER_NVIDIA_"
"""How the trait begins that has the branch of the host's vGPU driver, such as 550."""

PMEM_PREFIX = "CUSTOM_PMEM_NAMESPACE_"
"""How the classes of namespaces of persistent memory begin, see `pmem_class`."""

CPULESS_MEMORY = "CUSTOM_CPULESS_MEMORY_MB"
"""The class of memory, in MiB, of NUMA cells without CPUs: MEMORY_MB has none of it."""

EPC_CLASS = "CUSTOM_SGX_EPC_MB"
"""The class of memory for SGX enclaves, in MiB; MB means MiB, as in MEMORY_MB."""

DASHED_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
"""A uuid in its usual form: that of a mediated device in sysfs, and of an aggregate in Placement."""

PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)
"""A PCI address in lower case: its domain, bus, slot and function."""

VRAM_PREFIX = "vram-"
"""How the id of a type begins that is an amount of VRAM of a virtual function: vram-8192 is 8192 MiB."""

VRAM_CLASS = "CUSTOM_VRAM_MB"
"""The class by which a claim asks for a function with at least so many MiB of VRAM; no provider has it."""

PORT = re.compile(r"((?:[0-9a-f]{2}:){5}[0-9a-f]{2})(?: VLAN ([0-9]{1,4})( 802\.1ad)?)?", re.ASCII)
"""What a network card has for a virtual function, as one text: its MAC address and its VLAN (802.1Q)."""

VLAN = " VLAN "
"""What stands between the two in such a text."""

MIG_INSTANCE = re.compile(r"([1-9])g\.[1-9][0-9]{0,2}gb(?:[+-][a-z.]{1,12})?:(0|[1-9][0-9]?)", re.ASCII)
"""A MIG instance: its profile, with its compute slices first, and the memory slice in which it starts."""

NO_MAC = "00:00:00:00:00:00"
"""The port of a function for which its card has nothing."""

_VFIO_DRIVER = re.compile(r"(?:.+[-_])?vfio[-_]pci", re.ASCII)
_CUSTOM = "CUSTOM_"
_VRAM = re.compile(r"CUSTOM_VRAM_([0-9]{1,8})MB", re.ASCII)
_PAGES = re.compile(r"CUSTOM_HUGEPAGES_[0-9]+KIB", re.ASCII)
_VGPU = re.compile(r"(?:^| )[^\s-]+(?:-[^\s-]*[A-Za-z][^\s-]*)*-([0-9]{1,4})[A-Z]{1,2}$", re.ASCII)
_IN_PLACE = re.compile(rf"(?P<function>{PCI_ADDRESS.pattern})/(?P<type>.+)@(?P<place>[0-9]{{1,9}})", re.ASCII)
_ID = re.compile(r"(?:0x)?[0-9a-f]{1,4}", re.ASCII | re.IGNORECASE)


def custom(name: str, standard: Collection[str]) -> str:
    """A standard name as it is; any other as CUSTOM_<NAME>, with "_" for invalid characters.

    As in nova, a name that begins with CUSTOM_ keeps its underscores, and in another several stand for one.
    `standard` are the standard names. Raises ValueError where no valid character is left.
    """
    name = name.strip().upper()
    if name in standard:
        return name
    own = name.removeprefix(_CUSTOM)
    cleaned = re.sub(r"[^A-Z0-9]+" if own == name else r"[^A-Z0-9_]+", "_", own)
    if not cleaned.strip("_"):
        raise ValueError(f"{name!r} has no letter or digit that a name in Placement may have")
    return f"{_CUSTOM}{cleaned}"[:NAME_MAX]


def custom_class(name: str) -> str:
    """The resource class for an operator's text, see `custom`. Raises ValueError."""
    import os_resource_classes  # late: only code that names devices needs it

    return custom(name, os_resource_classes.STANDARDS)


def custom_traits(names: Iterable[str]) -> frozenset[str]:
    """The traits for an operator's texts, see `custom`; empty texts are ignored. Raises ValueError."""
    return frozenset(custom(name, standard_traits()) for name in names if name.strip())


def hexadecimal_id(text: str) -> str:
    """The id of a vendor or product as four lower-case hexadecimal digits. Raises ValueError."""
    digits = text.strip()
    if not _ID.fullmatch(digits):
        raise ValueError(f"{text!r} is not an id of one to four hexadecimal digits")
    return f"{int(digits, 16):04x}"


def pci_class(vendor_id: str, product_id: str) -> str:
    """The resource class of a PCI device without a configured one."""
    return f"CUSTOM_PCI_{vendor_id}_{product_id}".upper()


def pmem_class(label: str) -> str:
    """The resource class of the namespaces of persistent memory with the operator's label."""
    return custom(f"PMEM_NAMESPACE_{label}", ())


def page_class(size_kib: int) -> str:
    """The resource class of huge pages of a size; it is also a trait of NUMA cells that have such pages."""
    return f"CUSTOM_HUGEPAGES_{size_kib}KIB"


def is_page_class(name: str) -> bool:
    """Whether a resource class is one of `page_class`."""
    return _PAGES.fullmatch(name) is not None


def is_device_class(name: str) -> bool:
    """Whether a guest gets devices by the class, and no ports; an operator's own class is taken for one."""
    if name in (VDPA_CLASS, CPULESS_MEMORY, EPC_CLASS) or name.startswith(PMEM_PREFIX) or is_page_class(name):
        return False
    return name.startswith(_CUSTOM) or name in ("PGPU", "VGPU", "PCI_DEVICE", "FPGA")


def with_real_mode(traits: Collection[str], real: str | None) -> frozenset[str]:
    """A card's traits, where it really is in that mode of confidential computing; None is not known.

    In another mode than the stated one it has CC and a trait that says both: no guest can have it. Where none
    is stated, it is a card for guests whose memory is not encrypted, whose mode must be off.
    """
    stated = next((mode for mode, names in CC_MODES.items() if names <= {*traits}), "off")
    if real is None or real == stated:
        return frozenset(traits)
    return frozenset(traits) - CC_MODES[stated] | {CC, f"CUSTOM_CC_{real}_NOT_{stated}".upper()}


def wrong_mode(traits: Iterable[str]) -> str:
    """Why no guest gets a card with these traits, as a clause, if it is in another mode than is stated."""
    found = (CC_WRONG[trait] for trait in traits if trait in CC_WRONG)
    sentence = "is in the mode {} of confidential computing, and by its [pci] device_spec it is {}"
    return next((sentence.format(real, stated) for real, stated in found), "")


def vendor_trait(vendor_id: str) -> str:
    """The trait of a PCI vendor; `vendor_id` is four hexadecimal digits."""
    return f"CUSTOM_PCI_VENDOR_{vendor_id}".upper()


def product_trait(product_id: str) -> str:
    """The trait of a PCI product; `product_id` is four hexadecimal digits."""
    return f"CUSTOM_PCI_PRODUCT_{product_id}".upper()


def mdev_type_trait(type_id: str) -> str:
    """The trait of a card that offers mediated devices of a type, such as nvidia-11."""
    return custom(f"MDEV_TYPE_{type_id}", ())


def driver_trait(driver: str) -> str:
    """The trait of a driver of VFIO that migrates functions, such as mlx5_vfio_pci."""
    return custom(f"{MIGRATION_DRIVER_PREFIX}{driver}", ())


def physical_network_trait(network: str | None) -> frozenset[str]:
    """{"CUSTOM_PHYSNET_<NAME>"}: in upper case, with "_" for characters that a trait cannot hold.

    Neutron names the trait of a physical network in the same way. Source:
    https://docs.openstack.org/neutron/latest/admin/config-qos-min-bw.html
    """
    if network is None:
        return frozenset()
    return frozenset({"CUSTOM_PHYSNET_" + re.sub(r"[^A-Z0-9]", "_", network.upper())})


def physical_networks(traits: Iterable[str]) -> frozenset[str]:
    """Those of the traits that are ones of `physical_network_trait`."""
    return frozenset(trait for trait in traits if trait.startswith("CUSTOM_PHYSNET_"))


def device_aliases(labels: Iterable[str]) -> list[str]:
    """The name that each device has in the alias of its element in a domain, after the prefix `ua-`.

    `labels` are the names of the groups or PCI aliases that the devices come from, in the order of the
    devices; from the second device of a label on the name ends in a number: red, red-2. Empty without a
    label.
    """
    counts: dict[str, int] = {}
    names = []
    for label in labels:
        name = re.sub(r"[^A-Za-z0-9_-]", "-", label.lstrip("_"))
        counts[name] = counts.get(name, 0) + 1
        names.append(f"{name}-{counts[name]}" if name and counts[name] > 1 else name)
    return names


def vram_class(mib: int) -> str:
    """The resource class of functions with so many MiB of VRAM; MB means MiB, as in MEMORY_MB."""
    return f"CUSTOM_VRAM_{mib}MB"


def vram_sizes(classes: Iterable[str]) -> list[int]:
    """The MiB of those of the classes that are ones of `vram_class`, in ascending order."""
    return sorted({int(match[1]) for match in map(_VRAM.fullmatch, classes) if match})


def port_of(mac: str, vlan: int) -> str:
    """The port of a MAC address and the id of a VLAN, 0 for none, see `PORT`."""
    return f"{mac.lower()}{VLAN}{vlan}" if vlan else mac.lower()


def unit_in_place(function: str, type_id: str, place: int) -> str:
    """The unit of a vGPU in its place on a card: 0000:84:00.2/nvidia-471@20."""
    return f"{function}/{type_id}@{place}"


def address_of(unit: str) -> str:
    """The PCI address of the function of a vGPU in its place on a card; any other unit as it is.

    0000:84:00.2 of 0000:84:00.2/nvidia-471@20.
    """
    match = _IN_PLACE.fullmatch(unit)
    return match["function"] if match else unit


def vgpu_in_place(unit: str) -> tuple[str, str, int] | None:
    """The function, type and place that `unit_in_place` put together; None for any other unit.

    Also None for a part of a card that its class names: 0000:84:00.0/CUSTOM_VGPU_8@12.
    """
    match = _IN_PLACE.fullmatch(unit)
    if match is None or match["type"].isupper():
        return None
    return match["function"], match["type"], int(match["place"])


def mig_slices(instance: str) -> range:
    """The memory slices that a MIG instance takes at the least, as far as its name tells.

    Ng has N compute slices and takes as many memory slices or more; 3g takes 4 and 7g takes 8, on cards of 8.
    No card has more than 12. Raises ValueError where no card has so many. Source: NVIDIA, "Multi-Instance GPU
    User Guide", Supported MIG Profiles, and what `nvidia-smi mig -lgipp` prints.
    """
    match = MIG_INSTANCE.fullmatch(instance)
    compute, start = (int(match[1]), int(match[2])) if match else (0, 0)
    size, slices = {3: (4, 8), 7: (8, 8)}.get(compute, (compute, 12))
    if not size or start + size > slices:
        raise ValueError(f"no card has the place of {instance}; `nvidia-smi mig -lgipp` lists those it has")
    return range(start, start + size)


def is_vfio(driver: str) -> bool:
    """Whether the driver is VFIO's for PCI devices, or a vendor's own one of that kind, by its name."""
    return _VFIO_DRIVER.fullmatch(driver) is not None


def vgpu_gib(name: str) -> int | None:
    """The GiB of frame buffer in the name of a vGPU type: 10 of "NVIDIA A100-10C".

    None for any other name, also for A100-1-5C, a part of a MIG slice.
    """
    match = _VGPU.search(name)
    return int(match[1]) if match else None


@cache
def standard_traits() -> frozenset[str]:
    """The names of os-traits."""
    import os_traits  # late: it is slow to import

    return frozenset(os_traits.get_traits())


def mdev_types(traits: Iterable[str]) -> frozenset[str]:
    """Those of the traits that are ones of `mdev_type_trait`."""
    return frozenset(trait for trait in traits if trait.startswith("CUSTOM_MDEV_TYPE_"))


def migration_drivers(traits: Iterable[str]) -> frozenset[str]:
    """Those of the traits that name a driver of VFIO which migrates the functions of a card."""
    named = (trait for trait in traits if trait.startswith(MIGRATION_DRIVER_PREFIX))
    return frozenset(named) - {PLAIN_VFIO_TRAIT}


def vgpu_branches(traits: Iterable[str]) -> frozenset[int]:
    """The branches of NVIDIA's vGPU driver that the traits name."""
    found = (
        trait.removeprefix(VGPU_DRIVER_PREFIX) for trait in traits if trait.startswith(VGPU_DRIVER_PREFIX)
    )
    return frozenset(int(branch) for branch in found if branch.isascii() and branch.isdecimal())

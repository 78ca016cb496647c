"""Names that there are, of resource classes and traits, and the name that was probably meant. Pure.

Sources: os-resource-classes, os-traits, and
https://docs.openstack.org/nova/latest/configuration/extra-specs.html.
"""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

import os_resource_classes
import os_traits

CUTOFF, CUTOFF_SHORT = 0.8, 0.75
SHORT = 4
"""Two letters of VCPU that are swapped leave less of it alike than of a longer name."""
CUSTOM = "CUSTOM_"
_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
_NOT_IN_NAMES = re.compile(r"[^A-Z0-9_]", re.ASCII)

_MEANT: Mapping[str, str] = {
    "hw:maxphysaddr": "hw:maxphysaddr_bits",
    "hw:cpu_pinning": "hw:cpu_policy",
    "hw:cpu_pinning_policy": "hw:cpu_policy",
    "hw:cpu_threads_policy": "hw:cpu_thread_policy",
    "hw:hugepages": "hw:mem_page_size",
    "hw:huge_pages": "hw:mem_page_size",
    "hw:page_size": "hw:mem_page_size",
    "hw:tpm": "hw:tpm_version",
    "hw:vtpm": "hw:tpm_version",
    "hw:sev": "hw:mem_encryption",
    "hw:emulator_threads": "hw:emulator_threads_policy",
    "hw:pci_numa_policy": "hw:pci_numa_affinity_policy",
    "hw:hide_hypervisor": "hw:hide_hypervisor_id",
    "hw:rng_allowed": "hw_rng:allowed",
    "hw:disk_iops": "quota:disk_total_iops_sec",
    "hw:video_ram": "hw_video:ram_max_mb",
    "hw:accel": "accel:device_profile",
    "hw:pci_alias": "pci_passthrough:alias",
}
"""{what people write: nova's spec of that sense}, where the spelling alone leads elsewhere."""


def meant_spec(key: str, known: Collection[str]) -> str | None:
    """The extra spec of that sense, where the spelling alone leads elsewhere; None where it does not.

    `known` are the specs that there are: one with the same name in another namespace is meant, too.
    """
    lower = key.strip().lower()
    if lower in _MEANT:
        return _MEANT[lower]
    name = lower.partition(":")[2]
    alike = sorted(spec for spec in known if name and spec.partition(":")[2] == name)
    return alike[0] if len(alike) == 1 else None


def near_class(name: str, present: Collection[str]) -> str | None:
    """The resource class that was probably meant; None where `name` is right, or nothing is near.

    `present` are the classes of the host.
    """
    return _near(name, present, _STANDARD_CLASSES)


def near_trait(name: str, present: Collection[str]) -> str | None:
    """As `near_class`, for a trait; `present` are those of the host's providers."""
    return _near(name, present, _STANDARD_TRAITS)


def unknown_class(name: str) -> str | None:
    """A clause on why no provider can have the resource class; None: it is a standard or a custom one."""
    return _unknown(name, "resource class", _STANDARD_CLASSES)


def unknown_trait(name: str) -> str | None:
    """As `unknown_class`, for a trait. Placement refuses such a name, also as a forbidden one."""
    return _unknown(name, "trait", _STANDARD_TRAITS)


def _unknown(name: str, what: str, standard: Collection[str]) -> str | None:
    if name.startswith(CUSTOM) or name in standard:
        return None
    meant = _near(name, (), standard)
    advice = f"did you mean {meant}?" if meant else f"one of your own begins with {CUSTOM}."
    return f"{name} is no standard {what}; {advice}"


def _near(name: str, present: Collection[str], standard: Collection[str]) -> str | None:
    """What the host has is preferred to what only the standard has."""
    if name in standard or name in present:
        return None
    spelt = _NOT_IN_NAMES.sub("_", name.upper())
    if spelt in standard or spelt in present:
        return spelt
    cutoff = CUTOFF_SHORT if len(spelt) <= SHORT else CUTOFF
    for known in (present, standard):
        near = get_close_matches(spelt, sorted(known), cutoff=cutoff)
        if near:
            return near[0]
    return None

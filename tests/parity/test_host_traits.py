"""The traits of a host's CPU and of guests' network cards are those of nova's own tables."""

from __future__ import annotations

from nova.virt.libvirt import vif
from nova.virt.libvirt.utils import CPU_TRAITS_MAPPING, cpu_features_to_traits

from drivers.libvirt.describe.host import CPU_FLAGS, guest_traits, host_traits
from drivers.libvirt.xml import Capabilities, DomainCapabilities

START = "COMPUTE_NET_VIF_MODEL_"


def of_nova(flag: str) -> set[str]:
    return {trait for trait, has in cpu_features_to_traits({flag}).items() if has}


def own(flag: str) -> set[str]:
    found = host_traits(Capabilities("x86_64", ()), frozenset(), frozenset({flag}))
    return {trait for trait in found if trait.startswith("HW_CPU_X86_")}


def test_each_flag_that_nova_knows_is_the_same_trait() -> None:
    """libvirt's name of SSE3 is pni, so nova never reports it."""
    differing = [flag for flag in CPU_TRAITS_MAPPING if own(flag) != of_nova(flag)]
    assert differing == ["sse3"]
    assert own("pni") == of_nova("sse3")


def test_the_flags_that_nova_does_not_know_are_those_of_the_page() -> None:
    assert len(CPU_FLAGS.keys() - CPU_TRAITS_MAPPING.keys()) == 13


def test_network_cards_of_x86_guests_are_novas() -> None:
    newest = DomainCapabilities("kvm", qemu=(99, 0, 0))
    ours = {trait for trait in guest_traits(newest, "x86_64", (99, 0, 0)) if trait.startswith(START)}
    novas = {f"{START}{model.replace('-', '_').upper()}" for model in vif.SUPPORTED_VIF_MODELS["kvm"]}
    assert novas - ours == {f"{START}SPAPR_VLAN"} and ours <= novas

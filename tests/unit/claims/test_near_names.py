"""The names that were probably meant."""

import pytest

from agent.claims.near_names import meant_spec, near_class, near_trait


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("VGPUS", "VGPU"),
        ("vcpu", "VCPU"),
        ("VPCU", "VCPU"),
        ("RAM", None),
        ("MEMORY-MB", "MEMORY_MB"),
        ("CUSTOM_FPGA1", "CUSTOM_FPGA"),
        ("VCPU", None),
        ("PGPU", None),  # it exists; this host has none of it
        ("CUSTOM_OTHER_THING", None),
    ],
)
def test_a_class(written: str, meant: str | None) -> None:
    assert near_class(written, ("VCPU", "CUSTOM_FPGA")) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [("HW_CPU_X86_AVX22", "HW_CPU_X86_AVX2"), ("hw_cpu_x86_avx2", "HW_CPU_X86_AVX2"), ("CUSTOM_GOLD", None)],
)
def test_a_trait(written: str, meant: str | None) -> None:
    assert near_trait(written, ("CUSTOM_RED",)) == meant


def test_what_the_host_has_is_preferred_to_the_standard() -> None:
    assert near_trait("CUSTOM_GOLDS", ("CUSTOM_GOLD",)) == "CUSTOM_GOLD"


def test_a_spec_by_its_sense() -> None:
    known = ("os:secure_boot", "hw:mem_page_size", "quota:cpu_shares", "hw:x", "os:x")
    assert meant_spec("hw:secure_boot", known) == "os:secure_boot"
    assert meant_spec("HW:Page_Size", known) == "hw:mem_page_size"
    assert meant_spec("hw:cpu_shares", known) == "quota:cpu_shares"
    assert meant_spec("y:x", known) is None
    assert meant_spec("hw:mem_pagesize", known) is None

import pytest

from agent.device_names import (
    NAME_MAX,
    custom_class,
    custom_traits,
    device_aliases,
    hexadecimal_id,
    is_page_class,
    mdev_type_trait,
    page_class,
    pci_class,
    physical_network_trait,
    physical_networks,
    pmem_class,
    product_trait,
    vendor_trait,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("VGPU", "VGPU"),
        ("pgpu", "PGPU"),
        (" custom_fpga ", "CUSTOM_FPGA"),
        ("my fpga-2", "CUSTOM_MY_FPGA_2"),
        ("a__b", "CUSTOM_A_B"),
        ("gpu_-x", "CUSTOM_GPU_X"),
        ("custom_a__b", "CUSTOM_A__B"),
        ("x" * 300, ("CUSTOM_" + "X" * 300)[:NAME_MAX]),
    ],
)
def test_a_standard_class_stays_and_any_other_becomes_a_custom_one(text: str, name: str) -> None:
    assert custom_class(text) == name


def test_a_text_without_a_valid_character_is_refused() -> None:
    with pytest.raises(ValueError, match="has no letter or digit"):
        custom_class("!")


def test_traits_are_normalised_and_empty_texts_ignored() -> None:
    assert custom_traits(["HW_CPU_X86_AVX", "tesla-t4", " "]) == {"HW_CPU_X86_AVX", "CUSTOM_TESLA_T4"}


def test_labels_of_persistent_memory_are_normalised_as_by_nova() -> None:
    """What os_resource_classes.normalize_name makes of PMEM_NAMESPACE_<label>."""
    assert pmem_class("6gb") == "CUSTOM_PMEM_NAMESPACE_6GB"
    assert pmem_class("a__b") == "CUSTOM_PMEM_NAMESPACE_A_B"
    assert pmem_class("_x") == "CUSTOM_PMEM_NAMESPACE_X"


def test_ids_are_four_digits_and_name_class_and_traits() -> None:
    assert (hexadecimal_id("0x8086"), hexadecimal_id(" A ")) == ("8086", "000a")
    assert pci_class("8086", "10ca") == "CUSTOM_PCI_8086_10CA"
    assert (vendor_trait("10de"), product_trait("1eb8")) == (
        "CUSTOM_PCI_VENDOR_10DE",
        "CUSTOM_PCI_PRODUCT_1EB8",
    )
    assert mdev_type_trait("nvidia-11") == "CUSTOM_MDEV_TYPE_NVIDIA_11"


@pytest.mark.parametrize("text", ["", "12345", "xyz", "0x"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an id of one to four hexadecimal digits"):
        hexadecimal_id(text)


def test_classes_of_huge_pages_are_recognised() -> None:
    assert is_page_class(page_class(2048))
    assert not is_page_class("CUSTOM_HUGEPAGES_XKIB")


def test_a_physical_network_becomes_a_trait_name() -> None:
    assert physical_network_trait("phys-net.1") == {"CUSTOM_PHYSNET_PHYS_NET_1"}
    assert physical_network_trait("größe") == {"CUSTOM_PHYSNET_GR_SSE"}
    assert physical_network_trait(None) == frozenset()
    assert physical_networks({"CUSTOM_PHYSNET_A", "HW_NUMA_ROOT"}) == {"CUSTOM_PHYSNET_A"}


def test_devices_of_one_label_are_numbered_in_their_aliases() -> None:
    assert device_aliases(["_RED", "gpu", "", "gpu", "a.b", ""]) == ["RED", "gpu", "", "gpu-2", "a-b", ""]

from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import DriverDataError
from drivers.host.xml_parser import SIZE_MAX, number, parse_xml, pci_address, size_bytes, uuid_of

BOMB = (
    '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    "<domain><name>&b;</name></domain>"
)


def test_text_that_only_looks_like_a_document_type_is_text() -> None:
    root = parse_xml("<domain><metadata><![CDATA[<!DOCTYPE x>]]></metadata></domain>", "domain vm1", "domain")
    assert root.findtext("metadata") == "<!DOCTYPE x>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is not XML"),
        ("<domain>", "this is not XML"),
        ("<domain>\0</domain>", "this is not XML"),
        ("<domain>\ud800</domain>", "this is not XML"),
        ("<pool/>", "<domain> was expected, not <pool>"),
        (BOMB, "a document type is not allowed"),
        ("<!DOCTYPE domain><domain/>", "a document type is not allowed"),
        ('<!DOCTYPE d SYSTEM "file:///etc/passwd"><domain/>', "a document type is not allowed"),
        ("<domain>" + "x" * SIZE_MAX + "</domain>", f"more than {SIZE_MAX} characters"),
    ],
)
def test_what_is_no_such_document_names_whose_it_was(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=f"^domain vm1: .*{message}"):
        parse_xml(text, "domain vm1", "domain")


def test_deep_nesting_is_no_harm() -> None:
    depth = 50_000
    root = parse_xml("<domain>" + "<a>" * depth + "</a>" * depth + "</domain>", "d", "domain")
    assert root.find("name") is None


@pytest.mark.parametrize(
    ("unit", "text", "size"),
    [
        (None, "1", 1024),
        ("KiB", "2", 2048),
        ("KB", "2", 2000),
        ("b", "7", 7),
        ("bytes", "7", 7),
        ("MiB", " 3 ", 3 * 2**20),
        ("G", "1", 2**30),
        ("TiB", "1", 2**40),
    ],
)
def test_sizes_in_libvirts_units(unit: str | None, text: str, size: int) -> None:
    element = Element("memory", {} if unit is None else {"unit": unit})
    element.text = text
    assert size_bytes(element, "x") == size


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(DriverDataError, match="'parsec' is not a unit of size"):
        size_bytes(Element("memory", unit="parsec"), "x")


@pytest.mark.parametrize("text", ["", "-1", "1_0", "１", "0x", "1e3", "99999999999999999999999", None])
def test_what_is_no_number(text: str | None) -> None:
    with pytest.raises(DriverDataError):
        number(text, "x")


def test_pci_addresses_come_in_hexadecimal_and_in_decimal() -> None:
    assert (
        pci_address(Element("a", domain="0x0000", bus="0x41", slot="0x10", function="0x2"), "x")
        == "0000:41:10.2"
    )
    assert pci_address(Element("a", domain="0", bus="65", slot="16", function="2"), "x") == "0000:41:10.2"
    assert (
        pci_address(Element("a", domain="0x10000", bus="0", slot="0", function="0"), "x") == "10000:00:00.0"
    )
    with pytest.raises(DriverDataError, match="PCI slot: 32 is more than 31"):
        pci_address(Element("a", domain="0", bus="0", slot="0x20", function="0"), "x")
    with pytest.raises(DriverDataError, match="PCI bus: '' is not a number"):
        pci_address(Element("a", domain="0", slot="0", function="0"), "x")


def test_uuids_are_parsed_not_copied() -> None:
    assert uuid_of("{A0000000-0000-4000-8000-000000000001}", "x") == "a0000000-0000-4000-8000-000000000001"
    with pytest.raises(DriverDataError, match="is not a uuid"):
        uuid_of("../../etc/passwd", "x")


@given(st.text(max_size=60))
def test_no_text_does_worse_than_driverdataerror(text: str) -> None:
    for read in (
        lambda: parse_xml(text, "x", "domain"),
        lambda: number(text, "x"),
        lambda: uuid_of(text, "x"),
    ):
        try:
            read()
        except DriverDataError as error:
            assert error.message.startswith("x: ")

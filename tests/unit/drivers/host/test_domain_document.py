"""What is not changed in a domain stays as it was, byte for byte; what is no domain is refused."""

import pytest
from kits.paths import DATA

from agent.errors import DriverDataError
from drivers.host.domain_document import DomainDocument, add_child, child, remove, set_text

DOMAIN = """<?xml version="1.0"?>
<domain type='kvm' id="7">
  <!-- ports: 'red' < "blue" -->
  <name>web1</name>
  <description><![CDATA[a <b attr="c"> & d]]></description>
  <os><type arch='x86_64' machine="pc">hvm</type></os>
</domain>
"""


def test_the_quotes_of_libvirt_stay() -> None:
    text = DOMAIN.replace('id="7"', "id='7'").replace('machine="pc"', "machine='pc'")
    assert DomainDocument(text).text == text


@pytest.mark.parametrize("name", sorted(path.name for path in (DATA / "libvirt/domains").glob("*.xml")))
def test_recorded_domains_stay_byte_for_byte(name: str) -> None:
    text = (DATA / "libvirt/domains" / name).read_text("utf-8")
    assert DomainDocument(text).text == text


def test_a_document_in_double_quotes_stays_in_double_quotes() -> None:
    text = '<domain type="kvm">\n  <name note="it\'s">a</name>\n</domain>'
    assert DomainDocument(text).text == text


def test_new_elements_are_indented_like_their_siblings() -> None:
    document = DomainDocument("<domain type='kvm'>\n  <name>a</name>\n  <vcpu>1</vcpu>\n</domain>\n")
    add_child(document.root, "uuid", {}, after=("name",)).text = "u"
    add_child(child(document.root, "devices"), "hostdev", {"type": "pci"})
    set_text(child(document.root, "vcpu"), "1")
    assert document.text == (
        "<domain type='kvm'>\n  <name>a</name>\n  <uuid>u</uuid>\n  <vcpu>1</vcpu>\n"
        "  <devices>\n    <hostdev type='pci'/>\n  </devices>\n</domain>\n"
    )
    remove(document.root.findall("devices")[0])
    assert document.text == (
        "<domain type='kvm'>\n  <name>a</name>\n  <uuid>u</uuid>\n  <vcpu>1</vcpu>\n</domain>\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<domain", "this is not XML"),
        ("", "this is not XML"),
        ("<guest/>", "<domain> was expected, not <guest>"),
        ("<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>", "a document type is not allowed"),
        ("<domain>" + " " * 2**20 + "</domain>", "more than 1048576 characters"),
        ("<domain>\x00</domain>", "this is not XML"),
    ],
)
def test_what_is_no_domain_is_refused(text: str, said: str) -> None:
    with pytest.raises(DriverDataError, match=said):
        DomainDocument(text)

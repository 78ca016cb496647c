"""`plimsoll domain` on a real agent: from a claim to a domain that names its very devices."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import Sight

from agent.errors import ExitCode

DOMAIN = """<domain type='kvm'>
  <name>web9</name>
  <os><type machine='q35'>hvm</type></os>
  <!-- kept -->
</domain>
"""


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    path = tmp_path / "web9.xml"
    path.write_text(DOMAIN, encoding="utf-8")
    return path


def test_the_domain_names_the_function_that_was_claimed(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    output_of(
        path,
        "claim",
        "--name",
        "web9",
        "--resources",
        "VCPU=2,MEMORY_MB=1GiB",
        "--group",
        "NET:SRIOV_NET_VF=1",
    )
    (claim,) = shown.world.agent.host_status.overview().claims.values()
    ((unit,),) = (exact for classes in claim.units.values() for exact in classes.values())
    written = output_of(path, "domain", "web9", str(domain))
    root = ElementTree.fromstring(written)
    assert (root.findtext("uuid"), root.findtext("vcpu"), root.findtext("memory")) == (
        claim.consumer,
        "2",
        "1024",
    )
    address = root.find("devices/interface/source/address")
    assert address is not None
    bus, slot, function = (int(address.get(part, ""), 16) for part in ("bus", "slot", "function"))
    assert f"0000:{bus:02x}:{slot:02x}.{function:x}" == unit
    alias = root.find("devices/interface/alias")
    assert alias is not None and alias.get("name") == "ua-NET"
    assert "  <!-- kept -->\n" in written


def test_a_contradiction_is_one_line(fresh: tuple[Sight, Path], domain: Path) -> None:
    _, path = fresh
    output_of(path, "claim", "--name", "web9", "--resources", "VCPU=2,MEMORY_MB=1024")
    domain.write_text(DOMAIN.replace("</name>", "</name><vcpu>4</vcpu>"), encoding="utf-8")
    refused = plimsoll(path, "domain", "web9", str(domain))
    assert refused.returncode == ExitCode.USAGE
    assert "<vcpu> is 4, and the claim has 2 CPUs" in one_line(refused)


def test_what_cannot_be_written_is_said(fresh: tuple[Sight, Path], domain: Path) -> None:
    _, path = fresh
    unknown = plimsoll(path, "domain", "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a60", str(domain))
    assert unknown.returncode == ExitCode.FAILED and "has no claim on this host" in one_line(unknown)
    missing = plimsoll(path, "domain", "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a60", str(domain) + ".no")
    assert missing.returncode == ExitCode.USAGE and "cannot be read" in one_line(missing)

"""A domain that libvirt refuses half-way: what was made for it is undone."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kits.pci_tree import recorded_tree
from kits.vram_card import FUNCTIONS, XeGpu

from agent.cli import domain
from agent.cli.domain import Libvirt
from agent.errors import PlimsollError

TEST = "test:///default"
UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a60"


class LibvirtError(Exception):
    def get_error_code(self) -> int:
        return FakeLibvirt.VIR_ERR_NO_DOMAIN


class FakeLibvirt(ModuleType):
    """A libvirt that makes one mediated device and refuses the second; `undone` says what was taken back."""

    VIR_ERR_NO_DOMAIN = 42
    VIR_DOMAIN_DEFINE_VALIDATE = VIR_DOMAIN_UNDEFINE_KEEP_NVRAM = VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV = 0
    libvirtError = LibvirtError

    def __init__(self) -> None:
        super().__init__("libvirt")
        self.undone: list[str] = []

    def registerErrorHandler(self, handler: object, context: object) -> None:
        pass

    def open(self, uri: str) -> Any:
        return self

    def lookupByUUIDString(self, uuid: str) -> Any:
        raise LibvirtError("no such domain")

    def defineXMLFlags(self, xml: str, flags: int) -> Any:
        return SimpleNamespace(
            name=lambda: "web1", isActive=lambda: False, undefineFlags=lambda _: self.undone.append("domain")
        )

    def listAllDevices(self, flags: int) -> list[Any]:
        return []

    def nodeDeviceCreateXML(self, xml: str) -> Any:
        if "first" in xml:
            return SimpleNamespace(destroy=lambda: self.undone.append("first"))
        raise LibvirtError("no more devices of the type")


def test_a_second_mediated_device_that_cannot_be_made_takes_the_first_one_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    libvirt = FakeLibvirt()
    monkeypatch.setitem(sys.modules, "libvirt", libvirt)
    making = {"parent": "0000:42:00.0", "type": "nvidia-11"}
    written: Any = {
        "consumer": UUID,
        "xml": "<domain/>",
        "claim": {"to_make": {"first": making, "two": making}},
    }
    with pytest.raises(
        PlimsollError, match="did not make the mediated devices of the domain: no more devices"
    ):
        Libvirt("test:///").hand_over(written, start=True)
    assert libvirt.undone == ["first", "domain"]


def test_a_domain_starts_when_its_vgpu_is_in_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    libvirt = FakeLibvirt()
    monkeypatch.setitem(sys.modules, "libvirt", libvirt)
    monkeypatch.setattr(domain, "SYS", tmp_path)
    monkeypatch.setattr(domain, "VGPU_WAIT_S", 0.0)
    vendor = tmp_path / "bus" / "pci" / "devices" / "0000:84:00.1" / "nvidia"
    vendor.mkdir(parents=True)
    (vendor / "current_vgpu_type").write_text("472\n")
    (vendor / "placement_id").write_text("0\n")
    making = {"parent": "0000:84:00.1", "type": "nvidia-472", "placement": "20"}
    written: Any = {"consumer": UUID, "xml": "<domain/>", "claim": {"to_make": {"unit": making}}}
    with pytest.raises(PlimsollError, match="plimsoll devices apply"):
        Libvirt("test:///").hand_over(written, start=True)
    assert libvirt.undone == ["domain"]
    (vendor / "placement_id").write_text("20\n")
    with pytest.raises(AttributeError, match="create"):  # the domain of this libvirt cannot be started
        Libvirt("test:///").hand_over(written, start=True)


def test_a_domain_starts_when_its_function_has_its_vram(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    libvirt = FakeLibvirt()
    monkeypatch.setitem(sys.modules, "libvirt", libvirt)
    tree = recorded_tree(tmp_path, "xe")
    monkeypatch.setattr(domain, "SYS", tree.sys)
    monkeypatch.setattr(domain, "VGPU_WAIT_S", 0.0)
    gpu = XeGpu(tree.devices)
    making = {"parent": FUNCTIONS[1], "type": "vram-8192", "placement": "0"}
    written: Any = {"consumer": UUID, "xml": "<domain/>", "claim": {"to_make": {"unit": making}}}
    with pytest.raises(PlimsollError, match="did not get 8192 MiB of VRAM: run `plimsoll devices apply`"):
        Libvirt("test:///").hand_over(written, start=True)
    gpu.set_type(FUNCTIONS[1], "8192")
    with pytest.raises(AttributeError, match="create"):  # the domain of this libvirt cannot be started
        Libvirt("test:///").hand_over(written, start=True)


def test_a_domain_that_runs_is_defined_and_not_started_again() -> None:
    connection = pytest.importorskip("libvirt", reason="the binding is installed with ./dev").open(TEST)
    running = connection.lookupByName("test")
    written: Any = {"consumer": running.UUIDString(), "xml": running.XMLDesc(), "claim": {"to_make": {}}}
    done = Libvirt(TEST).hand_over(written, start=True)
    assert done == "test runs already; it is defined for its next start"

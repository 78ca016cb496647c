"""The MAC addresses and VLANs of virtual functions, as rtnetlink has them."""

from __future__ import annotations

import errno
import os
import socket
import struct

import pytest

from agent.device_names import port_of
from agent.durable.netlink import parse_ports, read_ports, set_port

MAC = "52:54:00:00:00:01"


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def vlans(number: int, vlan: int, protocol: int) -> bytes:
    """IFLA_VF_VLAN_LIST of one function with one VLAN (`struct ifla_vf_vlan_info`)."""
    return attribute(12, attribute(1, struct.pack("=III", number, vlan, 0) + struct.pack(">Hxx", protocol)))


def function(number: int, mac: str, vlan: int, protocol: int = 0) -> bytes:
    """What linux/if_link.h has for one function, with a fact of another kind before it."""
    told = attribute(10, struct.pack("=II", number, 0))
    told += attribute(1, struct.pack("=I32s", number, bytes.fromhex(mac.replace(":", ""))))
    told += attribute(2, struct.pack("=III", number, vlan, 0))
    return attribute(1, told + (vlans(number, vlan, protocol) if protocol else b""))


def answer(name: str, *functions: bytes, kind: int = 16) -> bytes:
    """A link of the kernel's answer, with these functions."""
    body = struct.pack("=BxHiII", 0, 1, 7, 0, 0) + attribute(3, os.fsencode(name) + b"\0")
    body += attribute(22 | 0x8000, b"".join(functions)) if functions else b""
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def test_each_function_has_its_mac_address_and_its_vlan() -> None:
    told = answer("lo") + answer("enp65s0", function(0, MAC, 100), function(1, "00:00:00:00:00:00", 0))
    assert parse_ports(told) == {"enp65s0": {0: "52:54:00:00:00:01 VLAN 100", 1: "00:00:00:00:00:00"}}
    assert port_of("52:54:00:AB:00:01", 0) == "52:54:00:ab:00:01"
    assert parse_ports(answer("enp65s0", function(0, MAC, 100), kind=3)) == {}


def test_a_vlan_of_802_1ad_is_told_from_one_of_802_1q() -> None:
    """The kernel tells the same number for both (`rtnl_fill_vfinfo`), and the protocol in the list alone."""
    protocols = [function(0, MAC, 100, 0x88A8), function(1, MAC, 100, 0x8100), function(2, MAC, 0, 0x88A8)]
    found = parse_ports(answer("enp65s0", *protocols))
    assert found == {"enp65s0": {0: f"{MAC} VLAN 100 802.1ad", 1: f"{MAC} VLAN 100", 2: MAC}}


def test_a_name_that_is_no_utf8_is_as_sysfs_has_it() -> None:
    """The kernel takes almost any bytes; such an interface of another card took all ports away."""
    name = os.fsdecode(b"l\xe9")
    told = answer(name, function(0, MAC, 0)) + answer("enp65s0", function(1, MAC, 0))
    assert parse_ports(told) == {name: {0: MAC}, "enp65s0": {1: MAC}}


def test_an_answer_that_ends_in_the_middle_tells_what_is_whole() -> None:
    told = answer("enp65s0", function(0, MAC, 0))
    for length in range(len(told)):
        try:
            parse_ports(told[:length])
        except struct.error:  # `read_ports` takes it for none
            continue
    assert parse_ports(b"\0" * 64) == {}


def test_the_ports_of_this_machine_can_be_read_by_any_user() -> None:
    assert all(isinstance(functions, dict) for functions in read_ports().values())


def test_a_kernel_that_does_not_answer_tells_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr("socket.socket", refused)
    assert read_ports() == {}


@pytest.mark.parametrize(("code", "protocol"), [(0, ""), (0, " 802.1ad"), (errno.EPERM, "")])
def test_a_port_is_set_as_it_is_read(monkeypatch: pytest.MonkeyPatch, code: int, protocol: str) -> None:
    here, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    kernel.send(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -code))
    monkeypatch.setattr("socket.socket", lambda *_: here)
    monkeypatch.delattr("socket.if_nametoindex")  # glibc opens a socket for it, which the unit may not
    if code:
        with pytest.raises(OSError, match="not permitted"):
            set_port("enp65s\udcff", 3, f"{MAC} VLAN 100")
    else:
        set_port("enp65s\udcff", 3, f"{MAC} VLAN 100{protocol}")
    asked = kernel.recv(4096)
    length, kind, flags = struct.unpack_from("=IHH", asked)
    assert (length, kind, flags) == (len(asked), 19, 5) and struct.unpack_from("=BxHiII", asked, 16)[2] == 0
    # The kernel does what each of both says, so a list comes alone (`do_setvfinfo`).
    plain, listed = attribute(2, struct.pack("=III", 3, 100, 0)), vlans(3, 100, 0x88A8)
    assert (plain in asked, listed in asked) == (not protocol, bool(protocol))
    again = struct.pack("=IHHII", len(asked), 16, 0, 1, 0) + asked[16:].replace(listed, plain)
    assert parse_ports(again) == {"enp65s\udcff": {3: f"{MAC} VLAN 100"}}
    kernel.close()


def test_what_is_no_port_is_refused() -> None:
    with pytest.raises(OSError, match="is no MAC address"):
        set_port("lo", 0, "52:54:00:00:00:01; VLAN 1")

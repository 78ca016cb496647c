"""The MAC address and the VLAN that network cards have for their virtual functions, over rtnetlink.

sysfs does not have them. Any user may read them, and CAP_NET_ADMIN sets them. Both together are a port, see
`agent.device_names.PORT`.

Source: rtnetlink(7), netlink(7) and linux/if_link.h (IFLA_VFINFO_LIST)
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

from agent.device_names import NO_MAC, PORT, port_of

TIMEOUT_S = 2.0
SIZE_MAX = 2**18
_NEW, _GET, _SET, _ERROR, _DONE = 16, 18, 19, 2, 3
_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_NAME, _VFS, _MASK = 3, 22, 29
_WITH_VFS, _WITHOUT_STATISTICS = 1, 8
_VF, _MAC, _VLAN, _VLANS, _INFO = 1, 1, 2, 12, 1
_802_1AD = b"\x88\xa8"
_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")


def read_ports() -> dict[str, dict[int, str]]:
    """{interface of a card: {number of a virtual function: its port}}, as far as the kernel tells them."""
    found: dict[str, dict[int, str]] = {}
    mask = _attribute(_MASK, struct.pack("=I", _WITH_VFS | _WITHOUT_STATISTICS))
    with suppress(OSError, struct.error), closing(_ask(_GET, _REQUEST | _DUMP, mask)) as link:
        while True:
            answer = link.recv(SIZE_MAX)
            found |= parse_ports(answer)
            if not answer or _HEADER.unpack_from(answer)[1] in (_DONE, _ERROR):
                break
    return found


def parse_ports(answer: bytes) -> dict[str, dict[int, str]]:
    """The ports in one answer of the kernel, as of `read_ports`."""
    found: dict[str, dict[int, str]] = {}
    start = 0
    while start + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, start)
        message, start = answer[start : start + length], start + max(_HEADER.size, _aligned(length))
        if kind != _NEW:
            continue
        attributes = list(_attributes(message[_HEADER.size + _LINK.size :]))
        name = next((os.fsdecode(value.rstrip(b"\0")) for each, value in attributes if each == _NAME), "")
        functions = (each for kind, value in attributes if kind == _VFS for each in _attributes(value))
        for _, function in functions:
            told = dict(_attributes(function))
            if _MAC in told and _VLAN in told:
                number, mac = struct.unpack_from("=I6s", told[_MAC])
                vlan = struct.unpack_from("=II", told[_VLAN])[1]
                info = dict(_attributes(told.get(_VLANS, b""))).get(_INFO, b"")
                is_outer = bool(vlan) and info[12:14] == _802_1AD
                found.setdefault(name, {})[number] = port_of(mac.hex(":"), vlan) + " 802.1ad" * is_outer
    return found


def set_port(interface: str, number: int, port: str) -> None:
    """Give the virtual function of the card the port. Raises OSError where the kernel refuses it."""
    match = PORT.fullmatch(port)
    if match is None:
        raise OSError(errno.EINVAL, f"{port[:40]!r} is no MAC address with a VLAN")
    mac = bytes.fromhex(match[1].replace(":", ""))
    vlan = struct.pack("=III", number, int(match[2] or 0), 0)
    info = _attribute(_INFO, vlan + _802_1AD + b"\0\0")  # only a list has the protocol of a VLAN
    told = _attribute(_VLANS, info) if match[3] else _attribute(_VLAN, vlan)
    if match[1] != NO_MAC:
        told = _attribute(_MAC, struct.pack("=I32s", number, mac)) + told
    # By its name: the C library asks for its index over a socket that the sandbox of the unit forbids.
    attributes = _attribute(_NAME, os.fsencode(interface) + b"\0") + _attribute(_VFS, _attribute(_VF, told))
    with closing(_ask(_SET, _REQUEST | _ACK, attributes)) as link:
        code = struct.unpack_from("=i", link.recv(SIZE_MAX), _HEADER.size)[0]
    if code:
        raise OSError(-code, os.strerror(-code))


def _ask(kind: int, flags: int, attributes: bytes) -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    link.settimeout(TIMEOUT_S)
    body = _LINK.pack(0, 0, 0, 0, 0) + attributes
    link.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
    return link


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value.ljust(_aligned(len(value)), b"\0")


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[start + _ATTRIBUTE.size : start + length]
        start += _aligned(length)

"""Who may call the local API, by role, and the addresses of the read-only HTTP listener.

The kernel gives the caller's uid and gid (SO_PEERCRED); no header counts. All users without a role are
refused. Source: https://man7.org/linux/man-pages/man7/unix.7.html
"""

import grp
import ipaddress
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self

from agent.errors import SettingsError

PORT_MAX = 65535


class ApiRole(IntEnum):
    """A role includes those with lower numbers."""

    NONE = 0
    READER = 1
    CLAIMER = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Principals:
    """Users and groups, by id."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, option: str, names: Sequence[str]) -> Self:
        """From user names or uids, and "@group" names or "@gid". Raises SettingsError for an unknown name."""
        uids: set[int] = set()
        gids: set[int] = set()
        for word in map(str.strip, names):
            is_group = word.startswith("@")
            name = word[1:] if is_group else word
            try:
                if name.isascii() and name.isdigit():
                    number = int(name)
                else:
                    number = grp.getgrnam(name).gr_gid if is_group else pwd.getpwnam(name).pw_uid
            except (KeyError, ValueError):
                what, remedy = "user", "create the user, give a numeric uid, or write @NAME for a group"
                if is_group:
                    what, remedy = "group", "create the group or give a numeric gid"
                raise SettingsError(
                    f"[api] {option} names the {what} {word!r}, which this system does not know; {remedy}",
                    option=option,
                    value=word,
                ) from None
            (gids if is_group else uids).add(number)
        return cls(frozenset(uids), frozenset(gids))

    def has(self, uid: int, gids: frozenset[int]) -> bool:
        """True if the user or one of the groups is listed."""
        return uid in self.uids or not self.gids.isdisjoint(gids)


@dataclass(frozen=True, slots=True)
class Access:
    """The access list: `readers` may read, `claimers` also claim and release, `admins` do everything."""

    readers: Principals = Principals()
    claimers: Principals = Principals()
    admins: Principals = Principals()

    @classmethod
    def parse(cls, readers: Sequence[str], claimers: Sequence[str], admins: Sequence[str]) -> Self:
        """From the settings. Root and the agent's own user, which control the agent anyway, are admins."""
        listed = Principals.parse("admins", admins)
        return cls(
            readers=Principals.parse("readers", readers),
            claimers=Principals.parse("claimers", claimers),
            admins=Principals(listed.uids | {0, os.geteuid()}, listed.gids),
        )

    def role_of(self, uid: int, gid: int) -> ApiRole:
        """The highest role of a user, by its uid, its gid and its groups in the user database."""
        gids: frozenset[int] = frozenset()
        # Only if a group is listed: the user database may be a remote directory server.
        if self.readers.gids or self.claimers.gids or self.admins.gids:
            try:
                user = pwd.getpwuid(uid)
                gids = frozenset((gid, *os.getgrouplist(user.pw_name, user.pw_gid)))
            except KeyError:
                gids = frozenset((gid,))
        for role, principals in (
            (ApiRole.ADMIN, self.admins),
            (ApiRole.CLAIMER, self.claimers),
            (ApiRole.READER, self.readers),
        ):
            if principals.has(uid, gids):
                return role
        return ApiRole.NONE


class Address(NamedTuple):
    """`host` is an IP address as text; port 0 stands for any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `127.0.0.1:9464`, `[::1]:9464` or `localhost:9464`. Raises SettingsError."""
        host, colon, port = text.strip().rpartition(":")
        if host == "localhost":
            host = "127.0.0.1"
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if not colon or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
                raise ValueError("no port")
            if (address.version == 6) != host.startswith("["):
                raise ValueError("brackets")
        except ValueError:
            raise SettingsError(
                f"[http] listen = {text!r} is not an address; give an IP address and a port, such as "
                "127.0.0.1:9464 or [::1]:9464.",
                group="http",
                option="listen",
                value=text,
            ) from None
        return cls(str(address), int(port))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

"""The roles of the local API's callers: readers, claimers, admins. All other users are refused.

The kernel gives the caller's uid and gid (SO_PEERCRED); no header counts.
Source: https://man7.org/linux/man-pages/man7/unix.7.html
"""

import grp
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from agent.errors import SettingsError


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
        for name in names:
            word = name.strip()
            if word.startswith("@"):
                gids.add(_gid(option, word[1:]))
            else:
                uids.add(_uid(option, word))
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
        gids = self._groups_of(uid, gid)
        for role, principals in (
            (ApiRole.ADMIN, self.admins),
            (ApiRole.CLAIMER, self.claimers),
            (ApiRole.READER, self.readers),
        ):
            if principals.has(uid, gids):
                return role
        return ApiRole.NONE

    def _groups_of(self, uid: int, gid: int) -> frozenset[int]:
        # Only if a group is listed: the user database may be a remote directory server.
        if not (self.readers.gids or self.claimers.gids or self.admins.gids):
            return frozenset()
        try:
            user = pwd.getpwuid(uid)
        except KeyError:
            return frozenset((gid,))
        return frozenset((gid, *os.getgrouplist(user.pw_name, user.pw_gid)))


def _uid(option: str, word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return pwd.getpwnam(word).pw_uid
    except (KeyError, ValueError):
        raise SettingsError(
            f"[api] {option} names the user {word!r}, which this system does not know; "
            "create the user, give a numeric uid, or write @NAME for a group",
            option=option,
            value=word,
        ) from None


def _gid(option: str, word: str) -> int:
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        return grp.getgrnam(word).gr_gid
    except (KeyError, ValueError):
        raise SettingsError(
            f"[api] {option} names the group {'@' + word!r}, which this system does not know; "
            "create the group or give a numeric gid",
            option=option,
            value="@" + word,
        ) from None

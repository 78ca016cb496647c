"""Roles by uid, by group, by supplementary group; whatever is not named is nobody."""

import grp
import os
import pwd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.config.access import Access, ApiRole, Principals
from agent.errors import SettingsError

STRANGER = 2**31 - 7


def test_root_and_the_agents_own_user_are_admins() -> None:
    access = Access.parse([], [], [])
    assert access.role_of(0, 0) is ApiRole.ADMIN
    assert access.role_of(os.geteuid(), STRANGER) is ApiRole.ADMIN


def test_nobody_else_is_anything() -> None:
    assert Access.parse([], [], []).role_of(STRANGER, STRANGER) is ApiRole.NONE


def test_names_and_numbers_mean_the_same() -> None:
    named = Access.parse(["daemon"], ["@daemon"], [" nobody "])
    uid, gid = pwd.getpwnam("daemon").pw_uid, grp.getgrnam("daemon").gr_gid
    assert named == Access.parse([str(uid)], [f"@{gid}"], [str(pwd.getpwnam("nobody").pw_uid)])


def test_the_highest_role_counts() -> None:
    both = str(STRANGER)
    assert Access.parse([both], [both], []).role_of(STRANGER, STRANGER) is ApiRole.CLAIMER
    assert Access.parse([both], [both], [both]).role_of(STRANGER, STRANGER) is ApiRole.ADMIN


def test_a_group_counts_for_a_user_that_the_system_does_not_know() -> None:
    access = Access.parse([f"@{STRANGER}"], [], [])
    assert access.role_of(STRANGER - 1, STRANGER) is ApiRole.READER
    assert access.role_of(STRANGER - 1, STRANGER - 1) is ApiRole.NONE


def test_supplementary_groups_count(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = pwd.getpwnam("daemon").pw_uid
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, STRANGER] if name == "daemon" else [gid])
    access = Access.parse([], [f"@{STRANGER}"], [])
    assert access.role_of(uid, 1) is ApiRole.CLAIMER
    assert access.role_of(pwd.getpwnam("nobody").pw_uid, 1) is ApiRole.NONE


@pytest.mark.parametrize("word", ["no-such-user", "", "@", "@no-such-group", "-1", "²", "a\0b"])
def test_an_unknown_name_is_refused_by_the_option_it_stands_in(word: str) -> None:
    with pytest.raises(SettingsError, match=r"\[api\] claimers") as caught:
        Access.parse([], [word], [])
    assert caught.value.details["option"] == "claimers"


@settings(deadline=None)
@given(
    uids=st.frozensets(st.integers(1, 50), max_size=5),
    gids=st.frozensets(st.integers(2**30, 2**30 + 50), max_size=5),
    uid=st.integers(2**30, 2**30 + 50),
    gid=st.integers(2**30, 2**30 + 50),
)
def test_who_is_not_listed_has_no_role(
    uids: frozenset[int], gids: frozenset[int], uid: int, gid: int
) -> None:
    access = Access(readers=Principals(uids, gids))
    assert (access.role_of(uid, gid) is ApiRole.READER) == (uid in uids or gid in gids)

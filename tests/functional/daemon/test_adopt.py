"""Adopting a uuid, with the journal that remembers another."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.settings import Settings, load
from agent.daemon.offline import adopt
from agent.errors import IdentityError, StateError, UsageError
from agent.state.identity import establish_identity
from agent.state.journal import Journal

A = "0b5b8f9c-8a0c-4a53-9f6b-9b7f2a4f1a11"
B = "5f1c44a2-1f0e-4d0e-8a89-0f8a5ce2f222"

MakeSettings = Callable[[str], Settings]


@pytest.fixture
def named(tmp_path: Path) -> MakeSettings:
    def settings(host: str) -> Settings:
        file = tmp_path / "plimsoll.conf"
        file.write_text(f"[DEFAULT]\ncompute_driver = fake\nhost = {host}\nstate_path = {tmp_path}\n")
        return load([file])

    return settings


def started(settings: Settings) -> str:
    """The identity, as a start of the agent finds it."""
    with closing(Journal.open(settings.state_path)) as journal:
        identity = establish_identity(settings.state_path, settings.host, journal.host_uuid())
        journal.remember_host(identity.uuid)
        return identity.uuid


def test_a_lost_file_is_mended(named: MakeSettings, tmp_path: Path) -> None:
    uuid = started(named("node1"))
    (tmp_path / "host_id").unlink()
    with pytest.raises(IdentityError, match=f"plimsoll adopt {uuid}"):
        started(named("node1"))
    adopt(named("node1"), uuid)
    assert started(named("node1")) == uuid


def test_a_rename_is_confirmed(named: MakeSettings) -> None:
    uuid = started(named("node1"))
    with pytest.raises(IdentityError):
        started(named("node2"))
    adopt(named("node2"), uuid)
    assert started(named("node2")) == uuid


def test_another_uuid_is_taken_where_no_claim_is_left_behind(named: MakeSettings, tmp_path: Path) -> None:
    started(named("node1"))
    adopt(named("node1"), B.upper())
    assert started(named("node1")) == B
    request = ClaimRequest(A, (RequestGroup(resources={"VCPU": 1}),))
    with closing(Journal.open(tmp_path)) as journal:
        journal.put_claim(Claim(A, ClaimState.CLAIMED, request, {B: {"VCPU": 1}}), "claimed").wait()
    with pytest.raises(IdentityError, match="1 claim of the host"):
        adopt(named("node1"), A)
    assert started(named("node1")) == B


def test_not_while_the_agent_runs_and_not_without_a_uuid(named: MakeSettings, tmp_path: Path) -> None:
    with closing(Journal.open(tmp_path)), pytest.raises(StateError, match="is in use"):
        adopt(named("node1"), A)
    with pytest.raises(UsageError, match="is not a uuid"):
        adopt(named("node1"), "node1")

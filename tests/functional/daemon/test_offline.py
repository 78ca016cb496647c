"""While no daemon runs: a uuid is adopted, and the host is reshaped by the same pass on the same state."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.agent import opened, request, told, world_of
from kits.placements import Running, usual_placement

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.settings import Settings, load
from agent.daemon import offline
from agent.daemon.offline import adopt, copied_state
from agent.errors import AnotherWriter, IdentityError, StateError, UsageError
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
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
    with pytest.raises(
        IdentityError, match=r"is a copy of that of node1, which goes on: remove .*, and this"
    ):
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


def test_a_host_with_nothing_to_move_gets_no_receipt_and_keeps_its_claims(tmp_path: Path) -> None:
    settings = told(tmp_path, usual_placement(tmp_path))
    with world_of(settings) as world:
        claim = world.operations.claim(request(VCPU=1))
        with pytest.raises(StateError):
            offline.preview_reshape(settings, None)
    preview = offline.preview_reshape(settings, None)
    assert preview.before == preview.after
    assert offline.reshape(settings, None) == ()
    with pytest.raises(UsageError):
        offline.reshape(settings, "no-such-receipt")
    with world_of(settings) as again:
        assert [known for _, known in again.operations.host_status.overview().instances] == [claim]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    """A Placement to which others can write, too."""
    with (
        closing(Core.open(tmp_path / "placement")) as core,
        Server(core, ["127.0.0.1:0"]) as server,
    ):
        yield Running(f"http://{server.addresses[0]}")


def test_it_is_the_agent_of_its_state_directory_and_no_other(served: Running, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (told(tmp_path / name, served) for name in ("one", "two"))
    with world_of(one) as world:
        world.operations.claim(request(VCPU=1))
    preview = offline.preview_reshape(one, None)
    assert preview.before == preview.after
    assert offline.reshape(one, None) == ()
    assert offline.preview_reshape(one, None).before == preview.before, "nothing was written"
    for file in one.state_path.iterdir():
        if file.name != "plimsoll.conf":
            shutil.copy(file, two.state_path)
    assert offline.reshape(two, None) == ()
    for done in (offline.preview_reshape, offline.reshape):
        with pytest.raises(AnotherWriter, match="Another Plimsoll agent writes"):
            done(one, None)


def test_a_copy_of_the_state_is_a_directory_of_its_own_that_goes_away(tmp_path: Path) -> None:
    settings = told(tmp_path, usual_placement(tmp_path))
    opened(settings).close()
    with copied_state(settings) as copied:
        assert copied.state_path != settings.state_path == tmp_path
        assert copied.driver.state_path == copied.state_path and copied.driver.read_only
        assert (copied.state_path / "host_id").read_text() == (tmp_path / "host_id").read_text()
    assert not copied.state_path.exists()

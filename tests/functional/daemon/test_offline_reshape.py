"""A reshape without the daemon: the same pass, on the same state, while no daemon runs."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.agent import opened, request, told
from kits.placements import Running, usual_placement

from agent.daemon import offline
from agent.daemon.offline import copied_state
from agent.errors import AnotherWriter, StateError, UsageError
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server


def test_a_host_with_nothing_to_move_gets_no_receipt_and_keeps_its_claims(tmp_path: Path) -> None:
    settings = told(tmp_path, usual_placement(tmp_path))
    world = opened(settings)
    try:
        world.agent.reconcile("the start")
        claim = world.operations.claim(request(VCPU=1))
        with pytest.raises(StateError):
            offline.preview_reshape(settings, None)
    finally:
        world.close()
    preview = offline.preview_reshape(settings, None)
    assert preview.before == preview.after
    assert offline.reshape(settings, None) == ()
    with pytest.raises(UsageError):
        offline.reshape(settings, "no-such-receipt")
    again = opened(settings)
    try:
        again.agent.reconcile("the start")
        assert [known for _, known in again.operations.instances()] == [claim]
    finally:
        again.close()


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
    with closing(opened(one)) as world:
        world.agent.reconcile("the start")
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

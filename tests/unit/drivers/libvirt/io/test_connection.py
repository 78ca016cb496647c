"""Work on a connection: one piece at a time, and a new session after one was lost."""

from pathlib import Path

import pytest
from kits.libvirt_node import domain, write_node

from agent.errors import DriverUnavailable
from drivers.libvirt.io.connection import Connection, Session
from drivers.libvirt.io.deadline import DeadlineRunner
from drivers.libvirt.io.pending_reads import PendingReads


class Watched:
    """A connection to libvirt's test driver, and what it reported."""

    def __init__(self, uri: str) -> None:
        self.opened: list[bool] = []
        self.disconnected: list[str] = []
        self.connection = Connection(
            uri,
            DeadlineRunner("libvirt", "look at libvirtd", 10, 10),
            PendingReads(),
            turn_timeout_s=0.05,
            changed=lambda why: None,
            opened=self.opened.append,
            disconnected=self.disconnected.append,
        )

    def count(self) -> int:
        return self.connection.run("count", lambda session: session.libvirt.numOfDomains(), lambda n: n)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(write_node(tmp_path / "node.xml", [domain(1)]))


def test_work_opens_the_session_and_the_next_work_uses_it(watched: Watched) -> None:
    sessions: list[Session] = []
    for _ in range(2):
        watched.connection.run("look", sessions.append, lambda nothing: nothing)
    assert sessions[0] is sessions[1]
    assert (watched.count(), watched.opened) == (1, [False])
    watched.connection.close()


def test_a_session_that_libvirt_reported_as_closed_is_replaced(watched: Watched) -> None:
    watched.count()
    watched.connection._connection_lost("the connection to libvirt was lost")
    assert watched.count() == 1
    assert watched.opened == [False, True]
    assert watched.disconnected == ["the connection to libvirt was lost"]
    watched.connection.close()


def test_a_second_piece_of_work_waits_for_its_turn_and_no_longer(watched: Watched) -> None:
    def second(session: Session) -> None:
        with pytest.raises(DriverUnavailable, match=r"earlier call yet, so the agent does not count"):
            watched.count()

    watched.connection.run("hold the turn", second, lambda nothing: nothing)
    watched.connection.close()


def test_a_closed_connection_refuses_work(watched: Watched) -> None:
    watched.count()
    watched.connection.close()
    watched.connection.close()
    with pytest.raises(DriverUnavailable, match="was closed"):
        watched.count()


def test_a_connection_that_cannot_be_opened_names_its_uri() -> None:
    with pytest.raises(DriverUnavailable, match="no connection to libvirt at test:///no/such/file"):
        Watched("test:///no/such/file").count()

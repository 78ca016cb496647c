"""Reading the domains of libvirt's test driver: all at first, then only what changed.

One domain that cannot be read stays, as it was last known and with its problem.
"""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.libvirt_node import connection_to, domain, domain_uuid, write_node

from agent.driver import GuestState
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.io import domain_reader
from drivers.libvirt.io.connection import Connection, PendingReads
from drivers.libvirt.io.domain_reader import DomainReader, KnownGuest, skipped_guest


@pytest.fixture
def pending_reads() -> PendingReads:
    return PendingReads()


@pytest.fixture
def connection(tmp_path: Path, pending_reads: PendingReads) -> Iterator[Connection]:
    uri = write_node(tmp_path / "node.xml", [domain(2), domain(1, vcpus=3, running=False)])
    connection = connection_to(uri, pending_reads)
    yield connection
    connection.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the domains that are read."""
    names: list[str] = []
    read_guest = domain_reader.read_guest

    def counting(
        session: object, libvirt_domain: object, name_and_id: tuple[str, int], *rest: object
    ) -> object:
        names.append(name_and_id[0])
        return read_guest(session, libvirt_domain, name_and_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(domain_reader, "read_guest", counting)
    return names


def test_domains_come_by_uuid_and_unchanged_ones_are_the_same_object(
    connection: Connection, pending_reads: PendingReads, reads: list[str]
) -> None:
    reader = DomainReader(connection, pending_reads, frozenset(), 60.0)
    domains = reader.read()
    assert [known.guest.uuid for known in domains] == [domain_uuid(1), domain_uuid(2)]
    assert [known.guest.resources["VCPU"] for known in domains] == [3, 1]
    assert sorted(reads) == ["guest-1", "guest-2"]
    connection.run("look", lambda session: setattr(session, "has_events", True), id)
    assert reader.read() is domains
    assert len(reads) == 2, "no event named a domain"
    pending_reads.add_domain(domain_uuid(1))
    assert reader.read() is domains
    assert reads[2:] == ["guest-1"]


def test_without_events_every_reading_reads_all(
    connection: Connection, pending_reads: PendingReads, reads: list[str]
) -> None:
    reader = DomainReader(connection, pending_reads, frozenset(), 60.0)
    reader.read()
    connection.run("look", lambda session: setattr(session, "has_events", False), id)
    reader.read()
    assert len(reads) == 4


def test_the_disk_size_of_an_unknown_domain_is_unknown(
    connection: Connection, pending_reads: PendingReads
) -> None:
    reader = DomainReader(connection, pending_reads, frozenset(), 60.0)
    (known, _) = reader.read()
    assert known.domain is not None
    assert reader.disk_gb(known.domain.uuid, known.domain.disks) == 0, "it has no disks"


def test_a_domain_on_which_libvirt_blocks_hides_no_other(
    tmp_path: Path, pending_reads: PendingReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = write_node(tmp_path / "node.xml", [domain(2), domain(1)])
    connection = connection_to(uri, pending_reads, call_timeout_s=0.5, total_timeout_s=5)
    answers = threading.Event()
    read_guest = domain_reader.read_guest

    def blocking(session: object, found: object, name_and_id: tuple[str, int], *rest: object) -> object:
        if name_and_id[0] == "guest-2":
            assert answers.wait(30)
        return read_guest(session, found, name_and_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(domain_reader, "read_guest", blocking)
    reader = DomainReader(connection, pending_reads, frozenset(), 60.0)
    try:
        well, blocked = reader.read()
        assert (well.guest.name, well.guest.problem) == ("guest-1", None)
        assert blocked.guest.problem is not None and "on which it blocks" in blocked.guest.problem
        answers.set()
        deadline = time.monotonic() + 10
        while any(known.guest.problem for known in reader.read()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        answers.set()
        connection.close()


PARSED = parse_domain(domain(1, vcpus=3))
KNOWN = KnownGuest(guest_of(PARSED, GuestState.PAUSED, 0, frozenset()), PARSED, ("guest-1", 7))


@pytest.mark.parametrize(
    ("name_and_id", "outdated"),
    [(("guest-1", 7), False), (("guest-1", 8), True), (("renamed", 7), True), (("guest-1", -1), True)],
)
def test_a_domain_is_outdated_once_it_was_restarted_stopped_or_renamed(
    name_and_id: tuple[str, int], outdated: bool
) -> None:
    assert KNOWN.is_outdated(name_and_id) == outdated


def test_a_skipped_domain_keeps_what_was_known_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        skipped = skipped_guest(domain_uuid(1), ("guest-1", 7), KNOWN)
        again = skipped_guest(domain_uuid(1), ("guest-1", 7), skipped)
    assert again == skipped
    assert skipped.guest.resources == KNOWN.guest.resources
    assert skipped.guest.state is GuestState.PAUSED
    assert skipped.guest.problem is not None and "on which it blocks" in skipped.guest.problem
    assert skipped.is_outdated(("guest-1", 7)), "the next reading tries it again"
    assert len(caplog.records) == 1


def test_a_skipped_domain_that_was_never_read_is_still_there() -> None:
    skipped = skipped_guest(domain_uuid(2), ("guest-2", 1), None)
    assert (skipped.guest.name, skipped.guest.resources, skipped.domain) == ("guest-2", {}, None)

"""One domain that cannot be read stays, as it was last known and with its problem."""

import logging

import pytest
from kits.libvirt_node import domain, domain_uuid

from agent.driver import GuestState
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.io.guests import KnownGuest, skipped_guest

PARSED = parse_domain(domain(1, vcpus=3))
KNOWN = KnownGuest(("guest-1", 7), guest_of(PARSED, GuestState.PAUSED, 0, frozenset()), PARSED)


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

"""The overview as gauges: a series for each value of an enumeration, and for each inventory."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kits.status import FORGOTTEN, HOST, guest, sight
from kits.wire import Wire

from agent.errors import PlacementUnavailable
from agent.placement.transport import Reply
from agent.status.metrics import MeteredTransport, Metrics, gauges
from agent.status.overview import Fault, Overview


@pytest.fixture(scope="module")
def seen() -> Iterator[Overview]:
    """A host with one guest, which has no claim, after a reshape."""
    with sight() as shown:
        shown.world.driver.change(flat_devices=False)
        shown.world.driver.add_guest(guest(FORGOTTEN, VCPU=1))
        shown.world.agent.reconcile("an event")
        yield shown.host_status.overview()


def series(seen: Overview, **changes: Any) -> dict[tuple[str, ...], float]:
    """{(name, label values): value}"""
    return {
        (sample.name.removeprefix("plimsoll_"), *sample.labels.values()): sample.value
        for family in gauges(replace(seen, **changes))
        for sample in family.samples
    }


def test_the_state_is_one_series_of_all_states(seen: Overview) -> None:
    found = series(seen)
    states = {key[1]: value for key, value in found.items() if key[0] == "state"}
    assert states == {"starting": 0, "ready": 1, "degraded": 0, "stopping": 0}
    assert found["claims_open",] == found["health_check", "livez", "loop"] == 1
    assert found["state_changed_timestamp_seconds",] == seen.status.since


def test_a_fault_is_shown_at_its_part(seen: Overview) -> None:
    found = series(seen, status=replace(seen.status, fault=Fault("placement", "It does not answer.")))
    assert [key[1] for key, value in found.items() if key[0] == "fault" and value] == ["placement"]


def test_usage_without_an_inventory_is_shown_as_well(seen: Overview) -> None:
    root, card, *_ = seen.tree
    found = series(seen, used={root.uuid: {"VCPU": 3, "DISK_GB": 0}, card.uuid: {"PCPU": 2}})
    assert found["inventory_used", HOST, "VCPU"] == 3 and found["inventory_capacity", HOST, "VCPU"] == 128
    assert found["inventory_used", card.name, "PCPU"] == 2
    assert found["inventory_size", card.name, "PCPU"] == 0
    assert found["providers",] == 4


def test_guests_without_a_claim_are_counted(seen: Overview) -> None:
    found = series(seen, status=replace(seen.status, audited=None))
    assert found["unclaimed_guests",] == found["guests", "running"] == 1
    assert ("last_audit_timestamp_seconds",) not in found


def test_answers_and_silence_are_counted_and_timed() -> None:
    now, errors = 0.0, [None, PlacementUnavailable("No answer."), PlacementUnavailable("Busy.", status=503)]

    def answer(_: object) -> Reply:
        nonlocal now
        now += 2
        if error := errors.pop(0):
            raise error
        return Reply(204)

    inner, metrics = Wire(answer=answer), Metrics()
    transport = MeteredTransport(inner, metrics, lambda: now)
    assert transport.request("PUT", "/x", microversion="1.39").status == 204
    while errors:
        with pytest.raises(PlacementUnavailable):
            transport.request("GET", "/x", microversion="1.39")

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"plimsoll_placement_{name}", labels)

    assert value("requests_total", method="PUT", status="204") == 1
    assert value("requests_total", method="GET", status="none") == 1
    assert value("requests_total", method="GET", status="503") == 1
    assert value("request_duration_seconds_sum", method="GET") == 4
    transport.close()
    assert inner.closed

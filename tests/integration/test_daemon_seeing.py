"""What is to be seen of a real daemon: over TCP, over its socket, and after it was killed."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.daemon_process import Daemon, eventually
from kits.status import fetch
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(
        tmp_path,
        {
            "DEFAULT": {"compute_driver": "fake"},
            "placement": {"kind": "embedded"},
            "http": {"listen": "127.0.0.1:0,[::1]:0"},
        },
    )
    made.start()
    yield made
    made.close()


def urls(daemon: Daemon) -> list[str]:
    """Where the last start listens, as its log says."""
    lines = daemon.lines("The health checks and the metrics are at")
    return re.findall(r"((?:127\.0\.0\.1|\[::1\]):\d+)", lines[-1])


def value(url: str, name: str) -> float:
    families = text_string_to_metric_families(fetch(url + "/metrics")[2].decode())
    return sum(each.value for family in families for each in family.samples if each.name == name)


def test_a_daemon_is_seen_over_both_families(daemon: Daemon) -> None:
    where = [f"http://{each}" for each in urls(daemon)]
    assert len(where) == 2
    daemon.claim({"VCPU": 2})
    for url in where:
        status, _, body = fetch(url + "/")
        assert status == 200 and b"node1" in body and b"2<span" in body
        assert fetch(url + "/livez")[0] == fetch(url + "/readyz")[0] == 200
        assert value(url, "plimsoll_claim_requests_total") == 1
        assert value(url, "plimsoll_commit_duration_seconds_count") > 1
        assert value(url, "plimsoll_placement_requests_total") > 5
        assert value(url, "process_resident_memory_bytes") > 2**20
    assert daemon.stop() == 0
    eventually("the end of it", lambda: not daemon.lines("are still under way"))


def test_the_history_survives_a_kill(daemon: Daemon) -> None:
    consumer = daemon.claim({"VCPU": 2})["consumer"]
    daemon.kill()
    daemon.start()
    events = daemon.client.get(f"/v1/history?consumer={consumer}")["events"]
    assert [each["event"] for each in events] == ["grant", "begin"]
    everything = [each["event"] for each in daemon.client.get("/v1/history")["events"]]
    assert everything.count("ready") == 2 and "pass" in everything


def test_a_taken_address_is_said_and_the_agent_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Daemon(tmp_path / "other", {**daemon.options, "http": {"listen": urls(daemon)[0]}})
    try:
        other.start()
        assert other.lines("Nothing is served at") and other.status()["state"] == "ready"
        assert other.client.get("/readyz")["ok"]
    finally:
        other.close()


def test_probes_over_the_socket_name_what_failed(daemon: Daemon, tmp_path: Path) -> None:
    daemon.kill()
    (tmp_path / "host.yaml").write_text(
        'cells: [{id: 0, cpus: "0-3", memory_mb: 4096}]\nunavailable: it is asleep\n'
    )
    daemon.options["fake"] = {"host_file": tmp_path / "host.yaml"}
    daemon.write()
    daemon.start()
    status, _, body = fetch(f"http://{urls(daemon)[0]}/readyz")
    told = json.loads(body)
    assert status == 503 and set(told["failed"]) >= {"inventory", "driver", "claims"}
    assert "it is asleep" in told["checks"]["driver"]["reason"]
    assert fetch(f"http://{urls(daemon)[0]}/livez")[0] == 200

"""Every command against the real agent: the fake driver's host and a placement; caps, and the tree."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from kits.agent import opened, told, world_of
from kits.agent_process import Agent
from kits.api_client import ask, check, serving
from kits.cli_process import one_line, output_of, plimsoll, plimsoll_started
from kits.daemon_process import eventually
from kits.placements import Embedded, Placement
from kits.status import Sight

from agent.config.settings import load
from agent.errors import ExitCode

GPU = "node1_pci_0000:42:00.0"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("agent"))
    agent.start()
    try:
        yield agent
    finally:
        assert agent.stop() == ExitCode.DONE
    assert not agent.socket.exists()


def used(agent: Agent) -> dict[str, int]:
    """{class: amount} that anybody holds anywhere in the tree."""
    found: dict[str, int] = {}
    for provider in json.loads(agent("tree", "-o", "json").stdout)["resource_providers"]:
        for name, amount in provider["usages"].items():
            found[name] = found.get(name, 0) + amount
    return {name: amount for name, amount in found.items() if amount}


def test_status_is_ready_and_the_plan_is_empty(running: Agent) -> None:
    status = json.loads(running("status", "-o", "json").stdout)
    assert (status["state"], status["host"], status["driver"]["name"]) == ("ready", "node1", "fake")
    assert UUID(status["uuid"])
    shown = running("status").stdout
    assert "state      ready\n" in shown and f"placement  {status['placement']['kind']}, ok\n" in shown
    assert running("plan").stdout == "nothing to change\n"


def test_the_tree_is_the_drivers_host(running: Agent) -> None:
    lines = running("tree", "--traits").stdout.splitlines()
    assert lines[0].startswith("node1  ")
    assert any(line.startswith("├─ ") and GPU in line for line in lines)
    assert any("VGPU" in line and line.endswith("0/16") for line in lines)
    assert any("CUSTOM_GPU_TESLA_M60" in line for line in lines)


def test_claim_instances_release(running: Agent) -> None:
    words = ("--resources", "VCPU=2,MEMORY_MB=2048", "--group", "1:VGPU=1", "--name", "web1")
    claimed = running("claim", *words, "-o", "json")
    assert (claimed.returncode, claimed.stderr) == (ExitCode.DONE, "")
    claim = json.loads(claimed.stdout)
    consumer = claim["consumer"]
    assert (claim["state"], claim["name"], claim["adopted"]) == ("claimed", "web1", False)
    assert used(running) == {"VCPU": 2, "MEMORY_MB": 2048, "VGPU": 1}
    assert json.loads(running("claim", consumer, *words, "-o", "json").stdout) == claim
    (listed,) = json.loads(running("instances", "-o", "json").stdout)["instances"]
    assert (listed["uuid"], listed["claim"]["state"]) == (consumer, "claimed")

    gone = running("release", consumer)
    assert (gone.returncode, gone.stdout) == (ExitCode.DONE, f"released {consumer}\n")
    assert used(running) == {}
    assert running("release", consumer).returncode == ExitCode.FAILED


def test_a_flavor_with_extra_specs(running: Agent) -> None:
    flavor = ("--flavor", "vcpus=2,memory_mb=1024,disk_gb=10", "--spec", "resources:VGPU=1")
    explained = running("claim", "--dry-run", *flavor)
    assert explained.returncode == ExitCode.DONE
    assert explained.stdout.startswith("it fits\n")
    assert f"VGPU                1      16  {GPU}  fits\n" in explained.stdout
    assert used(running) == {}


def test_a_refusal_names_asked_free_and_provider(running: Agent) -> None:
    done = running("claim", "--resources", "VCPU=1,VGPU=1000")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert f"1000 VGPU asked, 16 free on {GPU}" in done.stderr
    as_json = running("claim", "--resources", "VCPU=1,VGPU=1000", "-o", "json")
    shortfalls = json.loads(as_json.stderr)["error"]["details"]["shortfalls"]
    assert {"resource_class": "VGPU", "asked": 1000, "free": 16}.items() <= shortfalls[0].items()
    explained = running("claim", "--dry-run", "--resources", "VCPU=1,VGPU=1000")
    assert (explained.returncode, explained.stderr) == (ExitCode.REFUSED, "")
    assert explained.stdout.startswith("it does not fit\n")
    assert used(running) == {}


def test_another_claim_of_the_same_instance_is_a_conflict(running: Agent) -> None:
    consumer = str(uuid4())
    assert running("claim", consumer, "--resources", "VCPU=1").returncode == ExitCode.DONE
    other = running("claim", consumer, "--resources", "VCPU=2")
    assert other.returncode == ExitCode.REFUSED
    assert consumer in other.stderr
    assert used(running) == {"VCPU": 1}
    assert running("release", consumer).returncode == ExitCode.DONE


def test_config_show_is_what_the_agent_has_read(running: Agent) -> None:
    asked = json.loads(running("config", "show", "-o", "json").stdout)
    read = json.loads(running("config", "show", "--config-file", str(running.file), "-o", "json").stdout)
    assert asked == read
    assert asked["DEFAULT"]["compute_driver"]["value"] == "fake"


def test_all_that_the_agent_answers_is_as_the_document_says(running: Agent) -> None:
    body = {
        "consumer": str(uuid4()),
        "groups": [{"resources": {"VCPU": 1}}, {"suffix": "1", "resources": {"PGPU": 1}}],
    }
    claim = "/v1/claims/{consumer}"
    url = claim.format(consumer=body["consumer"])
    made = ask(running.socket, "POST", "/v1/claims", body)
    assert made.status == 201
    check("POST", "/v1/claims", made)
    for each in ("/healthz", "/v1/status", "/v1/tree", "/v1/instances", "/v1/plan", "/v1/config"):
        check("GET", each, ask(running.socket, "GET", each))
    check("GET", claim, ask(running.socket, "GET", url))
    check("POST", "/v1/claims", ask(running.socket, "POST", "/v1/claims?dry_run=true", body))
    refused = ask(running.socket, "POST", "/v1/claims", {**body, "consumer": str(uuid4())})
    assert refused.status == 409
    check("POST", "/v1/claims", refused)
    gone = ask(running.socket, "DELETE", url)
    assert gone.status == 200
    check("DELETE", claim, gone)


def test_a_claim_is_there_again_after_kill_9(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.start()
    try:
        claim = json.loads(agent("claim", "--resources", "VCPU=3", "-o", "json").stdout)
        agent.kill()
        assert agent("status").returncode == ExitCode.UNREACHABLE
        agent.start()
        (instance,) = json.loads(agent("instances", "-o", "json").stdout)["instances"]
        assert instance["claim"] == claim
        assert agent("release", claim["consumer"]).returncode == ExitCode.DONE
        assert used(agent) == {}
    finally:
        assert agent.stop() == ExitCode.DONE


HOST = "disk_gb: 100\ncells: [{id: 0, cpus: 0-7, memory_mb: 8192}]\n"


def test_without_its_driver_the_agent_says_why_and_claims_nothing(tmp_path: Path) -> None:
    host_file = tmp_path / "host.yaml"
    host_file.write_text(f"{HOST}unavailable: the hypervisor is asleep\n", encoding="utf-8")
    agent = Agent(tmp_path, host_file)
    agent.start()
    try:
        shown = agent("status").stdout
        assert "state      degraded\n" in shown
        assert shown.count("the hypervisor is asleep") == 1 and "driver     fake, not ok\n" in shown
        assert agent("tree").stdout == "no resource providers yet; `plimsoll status` says why\n"
        refused = agent("claim", "--resources", "VCPU=1")
        assert refused.returncode == ExitCode.REFUSED
        assert "the hypervisor is asleep" in one_line(refused)

        host_file.write_text(HOST, encoding="utf-8")
        eventually("that it is ready", lambda: agent.status()["state"] == "ready")
        assert "state      ready\n" in agent("status").stdout
        claimed = agent("claim", "--resources", "VCPU=1", "-o", "json")
        assert claimed.returncode == ExitCode.DONE
        assert agent("release", json.loads(claimed.stdout)["consumer"]).returncode == ExitCode.DONE
    finally:
        assert agent.stop() == ExitCode.DONE


def test_a_second_agent_on_the_same_host_is_refused(running: Agent) -> None:
    second = running("agent", "--config-file", str(running.file))
    assert second.returncode == ExitCode.FAILED
    assert running("status").returncode == ExitCode.DONE


def test_an_agent_with_bad_settings_ends_with_2(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text("[DEFAULT]\ncompute_drivre = fake\n", encoding="utf-8")
    done = plimsoll(tmp_path / "s", "agent", "--config-file", str(file))
    assert done.returncode == ExitCode.USAGE
    assert "compute_drivre" in done.stderr and "Traceback" not in done.stderr


def test_adopt_while_the_agent_runs_is_refused(running: Agent) -> None:
    done = running("adopt", str(uuid4()), "--config-file", str(running.file))
    assert done.returncode == ExitCode.FAILED
    one_line(done)


CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def test_tree_shows_what_was_claimed(host: Sight, path: Path) -> None:
    assert plimsoll(path, "claim", CONSUMER, "--resources", "VCPU=32,VGPU=8").returncode == ExitCode.DONE
    host.world.driver.change(flat_devices=False, nics=())
    host.world.agent.reconcile("the reshape")
    assert re.sub(r"[0-9a-f-]{36}", "UUID", output_of(path, "tree")) == (
        "kvm-07  UUID\n"
        "│  DISK_GB    ░░░░░░░░░░░░░░░░░░░░   0/1800\n"
        "│  MEMORY_MB  ░░░░░░░░░░░░░░░░░░░░   0/130560  (total 131072, reserved 512)\n"
        "│  VCPU       █████░░░░░░░░░░░░░░░  32/128     (total 32, ratio 4)\n"
        "├─ kvm-07_pci_0000:42:00.0  UUID\n"
        "│     VGPU    ████████████████████   8/8\n"
        "└─ kvm-07_pci_0000:83:00.0  UUID\n"
        "      PGPU    ░░░░░░░░░░░░░░░░░░░░   0/1\n"
    )
    ascii_only = plimsoll_started(
        path, "tree", "--traits", environment={"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    )
    assert ascii_only.stdout.isascii()
    assert "\n|     traits: CUSTOM_GPU_TESLA_M60\n" in ascii_only.stdout


def test_guests_get_no_more_than_the_cap_together(placement: Placement, tmp_path: Path) -> None:
    told(tmp_path, placement)
    file = tmp_path / "plimsoll.conf"
    settings = file.read_text()
    file.write_text(settings + "cap = VCPU=4\ncap = MEMORY_MB=1024\n")
    with world_of(load([file])) as world, serving(world.operations, tmp_path / "s"):
        output_of(tmp_path / "s", "claim", "--name", "web1", "--resources", "VCPU=2,MEMORY_MB=512")
        refused = plimsoll(tmp_path / "s", "claim", "--resources", "VCPU=3,MEMORY_MB=512")
        assert refused.returncode == ExitCode.REFUSED and "3 VCPU asked" in one_line(refused)
        output_of(tmp_path / "s", "claim", "--resources", "VCPU=1,MEMORY_MB=512")
        assert "3/4 " in output_of(tmp_path / "s", "tree"), "one host CPU, overcommitted by 4"
        # A lower cap takes nothing away; without a cap the host offers all of it again.
        for cap, code in (("cap = VCPU=1\n", ExitCode.REFUSED), ("", ExitCode.DONE)):
            file.write_text(settings + cap)
            world.agent.apply_settings(load([file]), None)
            world.agent.reconcile("the reload")
            done = plimsoll(tmp_path / "s", "claim", "--dry-run", "--resources", "VCPU=1,MEMORY_MB=64")
            assert done.returncode == code, done.stdout
            assert "web1" in output_of(tmp_path / "s", "instances")


def test_a_cap_that_matches_nothing_is_told_by_the_doctor_and_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = told(tmp_path, Embedded(tmp_path), "[DEFAULT]\ncap = CUSTOM_GPUS=4\ncap = VCPU=8\n")
    said = "[DEFAULT] cap = CUSTOM_GPUS=4 has no effect: no provider of this host has CUSTOM_GPUS."
    examined = plimsoll(tmp_path / "s", "doctor", "--config-file", str(tmp_path / "plimsoll.conf"))
    assert examined.returncode == ExitCode.DONE
    assert re.search(rf"(?m)^warning  options +{re.escape(said)}$", examined.stdout)
    assert "cap = VCPU" not in examined.stdout
    with opened(settings) as world:
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                world.agent.reconcile("an event")
        assert [said in record.message for record in caplog.records].count(True) == 1
        with serving(world.operations, tmp_path / "s"):
            assert said not in output_of(tmp_path / "s", "look"), "it is no reason"


def test_a_cap_of_nothing_below_what_is_in_use_is_told(placement: Placement, tmp_path: Path) -> None:
    """By the refusal, the status and the audit, each with the option."""
    told(tmp_path, placement)
    file = tmp_path / "plimsoll.conf"
    settings = file.read_text()
    cap = "[DEFAULT] cap = DISK_GB=0"
    with opened(load([file])) as world:
        world.agent.reconcile("the start")
        with serving(world.operations, tmp_path / "s"):
            output_of(tmp_path / "s", "claim", "--name", "web1", "--resources", "DISK_GB=1")
            file.write_text(settings + "cap = DISK_GB=0\n")
            world.agent.apply_settings(load([file]), None)
            world.agent.reconcile("the reload")
            refused = plimsoll(tmp_path / "s", "claim", "--resources", "DISK_GB=1")
            assert f"none of it is offered, with {cap}" in one_line(refused)
            (reason,) = world.agent.host_status.status().reasons
            assert "over capacity" in reason and cap in reason
            audited = plimsoll(tmp_path / "s", "audit")
            assert audited.returncode == ExitCode.DRIFT_FOUND
            assert "shrunk inventory" in audited.stdout and cap in audited.stdout

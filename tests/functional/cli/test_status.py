"""`plimsoll status`, `plan`, `look`, `audit` and `history` as processes, against a served host and a real
agent.
"""

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kits.agent import opened, request, told
from kits.cli_process import one_line, output_of, plimsoll
from kits.placements import usual_placement
from kits.served_agent import ServedAgent, served_agent
from kits.status import FORGOTTEN, Sight, asks, guest, uuid_of

from agent.api.operations import Operations
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import ClaimsClosed, DoesNotFit, DriverUnavailable, ExitCode
from agent.moves.states import MoveKind
from agent.placement.client import PlacementClient
from agent.status.recorder import REPEATED_S


def status_of(path: Path) -> str:
    """What `plimsoll status` shows, without what differs between two runs."""
    times = r"\d{4}-\d\d-\d\d [\d:]{8}[-+][\d:]+|pid \d+|[\d.]+ ms|[0-9a-f-]{36}"
    return re.sub(times, "X", output_of(path, "status"))


def test_status(host: Sight, path: Path) -> None:
    host.world.operations.look()
    assert status_of(path) == (
        "host       kvm-07  X\n"
        "state      ready\n"
        "since      X\n"
        "agent      0.1.0, X\n"
        "driver     fake, ok\n"
        "placement  embedded, ok\n"
        "claims     0, open\n"
        "gate       disabled\n"
        "findings   none, audited X\n"
        "last pass  X  After a look that was asked for: Placement already holds what the driver describes. "
        "(X)\n"
    )
    host.world.driver.fail(1, DriverUnavailable("It is asleep."))
    host.world.agent.reconcile("an event")
    assert status_of(path) == (
        "host       kvm-07  X\n"
        "state      degraded\n"
        "           It is asleep.\n"
        "since      X\n"
        "agent      0.1.0, X\n"
        "driver     fake, not ok\n"
        "placement  embedded, ok\n"
        "claims     0, closed\n"
        "gate       disabled\n"
        "findings   none, audited X\n"
        "last pass  X  failed (X)\n"
        "next try   X, or now by `plimsoll look`\n"
    )


def test_the_status_before_the_first_pass(tmp_path: Path) -> None:
    with served_agent(tmp_path) as agent:
        shown = agent("status").stdout
    assert "\nlast pass  none yet\n" in shown
    assert "\nclaims     0, closed: the agent is starting and has not seen the whole host yet\n" in shown


def test_plan_ends_with_drift_found_when_there_is_something_to_change(host: Sight, path: Path) -> None:
    assert output_of(path, "plan") == "nothing to change\n"
    host.world.driver.change(traits=frozenset({"COMPUTE_NODE"}))
    found = plimsoll(path, "plan")
    assert (found.returncode, found.stdout) == (
        ExitCode.DRIFT_FOUND,
        "Put the traits of kvm-07: remove HW_CPU_X86_AVX2.\n",
    )


UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def test_findings_are_unknown_until_an_audit(agent: ServedAgent) -> None:
    before = agent("status")
    assert "\nfindings   not audited yet" in before.stdout
    assert "not audited yet" in agent("top", "--once").stdout
    assert json.loads(agent("status", "-o", "json").stdout)["audited"] is None
    agent.world.agent.run_audit()
    assert "\nfindings   none, audited 20" in agent("status").stdout
    assert "0 findings" in agent("top", "--once").stdout


def test_the_first_scheduled_audit_already_reports_what_differs(agent: ServedAgent) -> None:
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    agent.world.agent.run_audit()
    assert "\nfindings   1, which `plimsoll audit` shows" in agent("status").stdout


def test_the_first_scheduled_audit_repairs_nothing(agent: ServedAgent) -> None:
    lost = agent.world.operations.claim(request(VCPU=1))
    path = f"/allocations/{lost.consumer}"
    agent.world.wire.inner.request("DELETE", path, microversion="1.39")
    agent.world.agent.run_audit()
    assert lost.consumer in agent("instances").stdout
    agent.world.agent.run_audit()
    assert lost.consumer not in agent("instances").stdout


def test_look_makes_a_pass_and_an_audit_now(agent: ServedAgent) -> None:
    good = agent("look")
    assert (good.returncode, good.stderr) == (ExitCode.DONE, "")
    assert "\nfindings   none, audited 20" in good.stdout
    assert "After a look that was asked for" in good.stdout
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    found = agent("look")
    assert found.returncode == ExitCode.DRIFT_FOUND
    assert "\nunclaimed instance: " in found.stdout
    assert UUID in agent("instances").stdout


def test_look_says_why_it_ends_with_3_where_the_audit_found_nothing(agent: ServedAgent) -> None:
    unread = "libvirt does not answer for domain web1: timed out"
    assert agent("claim", UUID, "--resources", "VCPU=1").returncode == ExitCode.DONE
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}, problem=unread))
    looked = agent("look")
    assert looked.returncode == ExitCode.DRIFT_FOUND
    assert "\nfindings   none, audited" in looked.stdout
    assert f"\n\nthe audit found nothing, but the status gives 1 reason:\n  {unread}. " in looked.stdout
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 1}))
    assert agent("look").returncode == ExitCode.DONE


def test_a_guest_that_is_merely_defined_never_alarms(agent: ServedAgent) -> None:
    agent.world.driver.add_guest(Guest(UUID, "template", GuestState.SHUTOFF, {"VCPU": 1}))
    assert agent("look").returncode == ExitCode.DONE
    assert "plimsoll_unclaimed_guests 0.0" in agent.world.operations.host_status.metrics().decode()


def test_after_a_fault_the_status_says_when_the_next_try_is_and_look_tries_now(agent: ServedAgent) -> None:
    agent.world.wire.cut = True
    away = agent("look")
    assert away.returncode == ExitCode.FAILED
    assert away.stderr == "plimsoll: Placement does not answer.\n"
    status = agent("status")
    assert "state      degraded\n           Placement does not answer.\n" in status.stdout
    assert "\nnext try   20" in status.stdout
    agent.world.wire.cut = False
    assert agent("look").returncode == ExitCode.DONE
    assert "next try" not in agent("status").stdout


CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


def test_each_finding_is_shown_and_the_exit_code_tells(host: Sight, path: Path) -> None:
    """Scenario 113."""
    assert output_of(path, "audit") == "nothing differs\n"
    lost = host.world.operations.claim(asks("db1", VCPU=1)).consumer
    host.world.wire.inner.request("DELETE", f"/allocations/{lost}", microversion="1.39")
    for options in ((), ("--dry-run",)):
        done = plimsoll(path, "audit", *options)
        assert done.returncode == ExitCode.DRIFT_FOUND
        assert done.stdout == (
            f"leaked claim: {lost} has a claim, but neither a guest on this host nor an allocation in "
            "Placement.\n"
            "  guest: none\n"
            "  claim: 1 VCPU on kvm-07\n"
            "  placement: nothing\n"
            f"  repair: release the claim of {lost}\n"
        )
    done = plimsoll(path, "audit", "--heal", "-o", "json")
    assert done.returncode == ExitCode.DRIFT_HEALED
    assert '"healed": true' in done.stdout


def test_the_agent_finds_and_heals_what_it_leaked(tmp_path: Path) -> None:
    """Scenario 112."""
    with opened(told(tmp_path, usual_placement(tmp_path))) as world:
        agent: Operations = world.operations
        world.agent.reconcile("the start")
        kept, lost = (agent.claim(request(VCPU=1, MEMORY_MB=64)) for _ in range(2))
        assert agent.audit(heal=False).findings == ()
        world.wire.inner.request("DELETE", f"/allocations/{lost.consumer}", microversion="1.39")
        for _ in range(2):
            assert lost.consumer in {claim.consumer for claim in agent.tracker.claims().values()}
            world.agent.run_audit()
        assert list(agent.tracker.claims().values()) == [kept]
        assert agent.audit(heal=False).findings == ()
        assert world.agent.host_status.status().findings == 0


@pytest.mark.parametrize("form", [str, lambda uuid: uuid.replace("-", "").upper()])
def test_of_an_instance_that_no_one_knows_the_audit_says_that(
    agent: ServedAgent, form: Callable[[str], str]
) -> None:
    known = agent.world.operations.claim(request(VCPU=1)).consumer
    assert agent("audit", form(known)).stdout == "nothing differs\n"
    done = agent("audit", form(CONSUMER))
    assert done.returncode == ExitCode.FAILED
    assert CONSUMER in one_line(done) and "no consumer" in done.stderr
    root = next(iter(agent.world.operations.providers())).uuid
    done = agent("audit", root)
    assert done.returncode == ExitCode.FAILED and "neither an instance nor a migration" in one_line(done)


def test_a_finding_is_shown_for_each_instance_that_it_concerns(agent: ServedAgent) -> None:
    world = agent.world
    asked = request(VCPU=1, PGPU=1)
    world.operations.claim(asked)
    gpu = UsedUnit("PGPU", "0000:83:00.0", "pci:0000:83:00.0")
    owner, thief, other = asked.consumer, uuid_of("thief"), world.operations.claim(request(VCPU=2)).consumer
    for uuid, name in ((owner, "owner"), (thief, "thief")):
        used = {"VCPU": 1, "PGPU": 1}
        world.driver.add_guest(Guest(uuid, name, GuestState.RUNNING, used, (gpu,)))
    world.agent.reconcile("a thief")
    world.agent.run_audit()
    for who in (owner, thief):
        shown = agent("audit", who)
        assert shown.returncode == ExitCode.DRIFT_FOUND and "shared unit: " in shown.stdout
        assert "shared unit: " in agent("explain", who).stdout
    assert agent("audit", other).stdout == "nothing differs\n"
    whole = json.loads(agent("audit", "-o", "json").stdout)["findings"]
    for who in (owner, thief, other):
        shown = json.loads(agent("audit", who, "-o", "json").stdout)["findings"]
        assert shown == [finding for finding in whole if who in json.dumps(finding)]


def test_a_finding_about_its_migration_is_shown_for_the_instance(agent: ServedAgent) -> None:
    world = agent.world
    instance, migration = request(VCPU=2), uuid_of("migration")
    world.operations.claim(instance)
    world.operations.begin_move(MoveKind.RESIZE, migration, replace(instance, groups=request(VCPU=1).groups))
    client = PlacementClient(world.wire)
    held = client.allocations_of(migration)
    less = {uuid: {**amounts, "VCPU": 1} for uuid, amounts in held.allocations.items()}
    client.write_allocations(replace(held, allocations=less))
    for who in (instance.consumer, migration):
        assert "amounts differ: " in agent("audit", who).stdout


def events(path: Path, *words: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(output_of(path, "history", "-o", "json", *words))["events"]
    return found


def test_the_history_tells_all_that_was_done(full: tuple[Sight, Path]) -> None:
    """The newest last for people, the newest first for programs."""
    _, path = full
    lines = output_of(path, "history").splitlines()
    assert lines[0].split() == ["WHEN", "WHAT", "WHO", "ASKED", "BY", "WHY"]
    kinds = [each["event"] for each in reversed(events(path))]
    assert kinds[:2] == ["pass", "ready"]
    assert kinds[-2:] == ["move_begin", "move_grant"]
    assert {"begin", "grant", "reshape"} <= set(kinds)
    assert f"{uuid_of('db1')} (db1)" in "\n".join(lines)
    assert "train: 300 DISK_GB, 24576 MEMORY_MB, 1 PGPU, 12 VCPU" in "\n".join(lines)


def test_the_history_of_one_consumer_and_of_the_newest(full: tuple[Sight, Path]) -> None:
    _, path = full
    assert [each["event"] for each in events(path, "--consumer", uuid_of("db1"))] == ["grant", "begin"]
    assert [each["event"] for each in events(path, "--limit", "1")] == ["move_grant"]
    assert len(events(path, "--since", "1h")) == len(events(path))
    assert events(path, "--since", "2999-01-01") == []
    assert output_of(path, "history", "--since", "2999-01-01") == "nothing happened\n"


def test_times_are_local_as_since_is(full: tuple[Sight, Path]) -> None:
    """In India, 5:30 hours ahead of UTC."""
    _, path = full
    zone = {"TZ": "Asia/Kolkata"}
    (at,) = (each["at"] for each in events(path, "--limit", "1"))
    here = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=5, minutes=30)))
    for command in (("history", "--limit", "1"), ("top", "--once")):
        assert f"{here:%Y-%m-%d %H:%M:%S}+05:30" in plimsoll(path, *command, environment=zone).stdout
    for minutes, is_shown in ((-1, True), (1, False)):
        since = f"{here + timedelta(minutes=minutes):%Y-%m-%dT%H:%M}"
        done = plimsoll(path, "history", "--since", since, environment=zone)
        assert ("move_grant" in done.stdout) is is_shown, done.stdout
    assert "+05:30" in plimsoll(path, "status", environment=zone).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
        (("--since", "99999999999d"), "is no time"),
        (("--limit", "0"), "from 1 to 10000"),
        (("--limit", "10001"), "from 1 to 10000"),
        (("--consumer", ""), "is an empty text"),
    ],
)
def test_what_makes_no_sense_is_said(full: tuple[Sight, Path], words: tuple[str, ...], said: str) -> None:
    done = plimsoll(full[1], "history", *words)
    assert done.returncode == ExitCode.USAGE and said in one_line(done)


def test_refusals_are_in_the_history_once(fresh: tuple[Sight, Path]) -> None:
    """Somebody who asks again and again does not push all else out of it."""
    shown, path = fresh
    for _ in range(3):
        with pytest.raises(DoesNotFit):
            shown.world.operations.claim(asks("giant", VCPU=1000))
    refused = [each for each in events(path) if each["event"] == "refused"]
    assert len(refused) == 1 and "1000 VCPU asked" in refused[0]["detail"]
    assert refused[0]["consumer"] == uuid_of("giant")
    assert REPEATED_S > 60


def test_outages_are_in_the_history_and_refusals_because_of_them_are_not(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.fail(1, DriverUnavailable("libvirtd does not answer."))
    shown.world.agent.reconcile("an event")
    with pytest.raises(ClaimsClosed):
        shown.world.operations.claim(asks("unlucky", VCPU=1))
    shown.world.agent.reconcile("the retry")
    assert [each["event"] for each in events(path)][:2] == ["ready", "degraded"]
    assert events(path)[1]["detail"] == "libvirtd does not answer."


def test_what_was_healed_is_in_the_history(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.add_guest(guest(FORGOTTEN, VCPU=2, MEMORY_MB=2048, DISK_GB=20))
    shown.world.agent.reconcile("an event")
    shown.world.operations.audit(heal=True)
    (healed,) = [each for each in events(path) if each["event"] == "healed"]
    assert healed["consumer"] == uuid_of(FORGOTTEN) and healed["detail"].startswith("unclaimed instance: ")


def test_who_asked_is_in_the_history_and_in_explanations(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    consumer = uuid_of("asked for")
    done = plimsoll(path, "claim", consumer, "--resources", "VCPU=1")
    assert done.returncode == ExitCode.DONE, done.stderr
    (grant, begin) = events(path, "--consumer", consumer)
    assert grant["uid"] == begin["uid"] == os.geteuid() and grant["pid"] == begin["pid"] != os.getpid()
    asker = f"uid {grant['uid']} (pid {grant['pid']})"
    assert output_of(path, "history", "--consumer", consumer).count(asker) == 2
    assert output_of(path, "explain", consumer).count(f"asked for by {asker}") == 2
    assert events(path)[-1]["uid"] is None, "the agent makes the first pass by itself"


def test_a_restart_keeps_the_history(fresh: tuple[Sight, Path]) -> None:
    shown, _ = fresh
    shown.world.operations.claim(asks("web", VCPU=1))
    assert [each.event for each in shown.host_status.history(limit=2)] == ["grant", "begin"]
    assert shown.journal.history(since=time.time() + 60) == ()

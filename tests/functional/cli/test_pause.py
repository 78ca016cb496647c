"""Pause, resume and drain on a real agent: what is refused, what goes on, what schedulers are told."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

from kits.agent import world_of
from kits.api_client import serving
from kits.cli_process import COMMAND, ENVIRONMENT, one_line, output_of, plimsoll
from kits.daemon_process import eventually
from kits.status import Sight, fill, uuid_of

from agent.config.settings import load
from agent.driver import Guest, GuestState
from agent.errors import ExitCode
from agent.status.web import render_page

WANTED = ("--resources", "VCPU=1,MEMORY_MB=512")
DISABLED = "COMPUTE_STATUS_DISABLED"


def test_a_paused_host_refuses_claims_with_the_reason_and_releases_go_on(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "claim", "--name", "before", *WANTED)
    said = output_of(path, "pause", "--reason", "new memory")
    assert said == "paused: new claims are refused until `plimsoll resume`\n"
    refused = plimsoll(path, "claim", "--name", "after", *WANTED)
    assert refused.returncode == ExitCode.REFUSED
    assert f"the host is paused by uid {os.getuid()}: new memory" in one_line(refused)
    status = output_of(path, "status")
    assert f"by uid {os.getuid()}: new memory" in status and "closed: the host is paused" in status
    output_of(path, "release", "before")
    assert output_of(path, "resume") == "resumed: claims are taken again\n"
    output_of(path, "claim", "--name", "after", *WANTED)
    assert "paused" not in output_of(path, "status")
    assert output_of(path, "resume") == "the host was not paused: claims are taken\n"
    assert output_of(path, "history", "-o", "csv", "-c", "what").count('"resume"') == 1


def test_the_same_claim_again_is_answered_on_a_paused_host(fresh: tuple[Sight, Path]) -> None:
    """A play that claims and then drains the host is run twice; another request stays refused."""
    _, path = fresh
    words = ("--name", "web1", "--resources", "VCPU=1")
    made = output_of(path, "claim", *words)
    plimsoll(path, "drain", "--reason", "fw")
    assert output_of(path, "claim", *words) == made
    for other in (("--name", "web1", "--resources", "VCPU=2"), ("--name", "web2", "--resources", "VCPU=1")):
        refused = plimsoll(path, "claim", *other)
        assert refused.returncode == ExitCode.REFUSED and "Claims are closed" in one_line(refused)


def test_a_dry_run_on_a_paused_host_ends_as_the_claim_would(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    assert plimsoll(path, "claim", "--dry-run", *WANTED).returncode == ExitCode.DONE
    output_of(path, "pause", "--reason", "new disks")
    dry = plimsoll(path, "claim", "--dry-run", *WANTED)
    assert dry.returncode == ExitCode.REFUSED
    assert "it fits, and claims are closed: the host is paused by uid" in dry.stdout
    told = json.loads(plimsoll(path, "claim", "--dry-run", *WANTED, "-o", "json").stdout)
    assert told["fits"] and told["closed"].endswith(": new disks")


def test_resume_does_not_say_that_claims_are_taken_while_something_else_closes_them(
    fresh: tuple[Sight, Path],
) -> None:
    shown, path = fresh
    output_of(path, "pause")
    shown.world.driver.fail(1)
    shown.world.agent.reconcile("an event")
    said = output_of(path, "resume")
    assert said.startswith("resumed, but claims are closed: ") and "does not answer" in said


def test_a_pause_outlives_the_agent(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    output_of(path, "pause", "--reason", "until Tuesday")
    shown.world.close()
    with (
        world_of(load([shown.directory / "plimsoll.conf"])) as again,
        serving(again.operations, shown.directory / "t"),
    ):
        ready = output_of(shown.directory / "t", "history", "--limit", "1")
        assert "claims are closed: the host is paused" in ready and "claims are open" not in ready
        refused = plimsoll(shown.directory / "t", "claim", *WANTED)
        assert "until Tuesday" in one_line(refused)
        output_of(shown.directory / "t", "resume")
        output_of(shown.directory / "t", "claim", *WANTED)


def test_schedulers_are_told_by_the_trait_until_the_host_resumes(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    for command, told in (("pause", False), ("resume", False)):
        output_of(path, command)
        shown.world.agent.reconcile("a test")
        assert (DISABLED in output_of(path, "tree", "--traits")) is told
    output_of(path, "pause", "--schedulers")
    shown.world.agent.reconcile("a test")
    assert DISABLED in output_of(path, "tree", "--traits")
    output_of(path, "resume")
    shown.world.agent.reconcile("a test")
    assert DISABLED not in output_of(path, "tree", "--traits")


def test_a_drain_lists_what_is_left_and_ends_when_nothing_is(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "claim", "--name", "web1", *WANTED)
    left = plimsoll(path, "drain", "--reason", "new firmware")
    assert left.returncode == ExitCode.DRIFT_FOUND
    assert "1 instance is still here:" in left.stdout and "web1" in left.stdout
    assert "plimsoll release web1" in left.stdout and "virsh" not in left.stdout, "it has no guest"
    assert plimsoll(path, "claim", *WANTED).returncode == ExitCode.REFUSED
    output_of(path, "release", "web1")
    assert output_of(path, "drain") == "drained: nothing is left on this host\n"


def test_a_drain_or_pause_again_keeps_what_it_does_not_name(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh

    def pause() -> dict[str, object]:
        return dict(json.loads(output_of(path, "status", "-o", "json"))["pause"])

    output_of(path, "drain", "--schedulers", "--reason", "new firmware")
    first = pause()
    output_of(path, "drain")
    output_of(path, "pause")
    assert pause() == first
    assert (first["reason"], first["schedulers"], first["drains"]) == ("new firmware", True, True)
    output_of(path, "drain", "--reason", "newer firmware")
    assert pause() == {**first, "reason": "newer firmware", "since": pause()["since"]}
    output_of(path, "resume")
    output_of(path, "pause")
    again = pause()
    assert (again["reason"], again["schedulers"], again["drains"]) == ("", False, False)


def test_a_drain_says_for_each_kind_of_instance_what_to_do(fresh: tuple[Sight, Path]) -> None:
    """As the table of docs/maintenance.md; each kind once, with one of its instances as the example."""
    shown, path = fresh
    fill(shown)
    output_of(path, "claim", "--name", "later", *WANTED)
    shown.world.driver.add_guest(Guest(uuid_of("off"), "off", GuestState.SHUTOFF, {"VCPU": 1}))
    shown.world.agent.reconcile("an event")
    left = plimsoll(path, "drain")
    assert left.returncode == ExitCode.DRIFT_FOUND
    advice = dict(line.split(": ", 1) for line in left.stdout.splitlines() if re.match(r"[a-z ]+: ", line))
    assert advice.keys() == {"running", "a migration", "moving", "no guest", "shut off"}
    assert re.match(r"virsh migrate --live .*--undefinesource \S+ qemu\+ssh://", advice["running"])
    assert advice["no guest"].startswith("plimsoll release later")
    assert advice["shut off"].startswith("virsh undefine off, or virsh migrate --offline")
    assert "plimsoll move list" in advice["a migration"]


def test_a_wait_that_is_no_number_is_refused(fresh: tuple[Sight, Path]) -> None:
    refused = plimsoll(fresh[1], "drain", "--wait", "long")
    assert refused.returncode == ExitCode.USAGE and "--wait 'long'" in one_line(refused)


def test_a_drain_follows_the_instances_to_the_end(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    for name in ("web1", "web2"):
        output_of(path, "claim", "--name", name, *WANTED)
    followed = subprocess.Popen(
        [*COMMAND, "drain", "--follow"],
        env={**ENVIRONMENT, "PLIMSOLL_SOCKET": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert followed.stdout is not None
        eventually("the drain", lambda: shown.world.agent.host_status.status().pause)
        time.sleep(0.5)  # it has listed both
        output_of(path, "release", "web1")
        assert followed.stdout.readline().endswith("(web1); 1 to go\n")
        assert followed.poll() is None
        output_of(path, "release", "web2")
        said, _ = followed.communicate(timeout=30)
    finally:
        followed.kill()
    assert "(web2); 0 to go\n" in said
    assert said.endswith("drained: nothing is left on this host\n")
    assert followed.returncode == ExitCode.DONE


def test_a_pause_is_on_the_page(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    output_of(path, "pause", "--reason", "<b>memory</b>", "--schedulers")
    page = _page(shown)
    assert ">paused</dd>" in page and "schedulers are told" in page
    assert "&lt;b&gt;memory" in page and "<b>memory" not in page
    output_of(path, "drain")
    assert ">drained</dd>" in _page(shown)
    output_of(path, "resume")
    assert ">drained</dd>" not in _page(shown)


def _page(shown: Sight) -> str:
    return render_page(shown.host_status.overview(), None, ())

"""What each command shows, and with which code it ends, as a process against a served host."""

import json
from pathlib import Path

import pytest
import yaml
from kits.api_host import GPU, SmallHost
from kits.cli_process import one_line, plimsoll

from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = ("--resources", "VCPU=2,VGPU=1")


def test_status(host: SmallHost, path: Path) -> None:
    done = plimsoll(path, "status")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert done.stdout == (
        "host       host1  11111111-1111-4111-8111-111111111111\n"
        "state      ready\n"
        "since      2026-09-21 14:13:20+00:00\n"
        "agent      0.1.0, pid 4711\n"
        "driver     small, ok\n"
        "placement  none, ok\n"
        "claims     0, open\n"
        "findings   none\n"
        "last pass  2026-09-21 14:13:20+00:00  Nothing new. (1.2 ms)\n"
    )
    host.open = False
    assert (
        "state      degraded\n"
        "           the driver has not delivered an inventory yet\n"
        "since      2026-09-21 14:13:20+00:00\n"
        "agent      0.1.0, pid 4711\n"
        "driver     small, not ok: it is asleep\n"
        "placement  none, ok\n"
        "claims     0, closed: the driver has not delivered an inventory yet\n"
        "findings   none\n"
        "last pass  none yet\n"
    ) in plimsoll(path, "status").stdout


def test_tree_shows_what_was_claimed(path: Path) -> None:
    assert plimsoll(path, "claim", CONSUMER, "--resources", "VCPU=32,VGPU=4").returncode == ExitCode.DONE
    assert plimsoll(path, "tree").stdout == (
        "host1  11111111-1111-4111-8111-111111111111\n"
        "│  DISK_GB     ░░░░░░░░░░░░░░░░░░░░   0/490    (total 500, reserved 10)\n"
        "│  MEMORY_MB   ░░░░░░░░░░░░░░░░░░░░   0/65024  (total 65536, reserved 512)\n"
        "│  VCPU        ██████████░░░░░░░░░░  32/64     (total 16, ratio 4)\n"
        "└─ host1_numa0  22222222-2222-4222-8222-222222222222\n"
        "   └─ host1_pci_0000:84:00.0  33333333-3333-4333-8333-333333333333\n"
        "         VGPU  ████████████████████   4/4\n"
    )
    ascii_only = plimsoll(
        path, "tree", "--traits", environment={"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    )
    assert ascii_only.stdout.isascii()
    assert "   |  traits: HW_NUMA_ROOT\n" in ascii_only.stdout


def test_claim_then_instances_then_release(path: Path) -> None:
    done = plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "web1")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert done.stdout == (
        f"claimed for {CONSUMER} (web1)\n"
        "PROVIDER                RESOURCE CLASS  AMOUNT  UNITS\n"
        "host1                   VCPU                 2  -\n"
        "host1_pci_0000:84:00.0  VGPU                 1  mdev7\n"
    )
    assert f"{CONSUMER}  web1   none     claimed    VCPU=2,VGPU=1\n" in plimsoll(path, "instances").stdout
    gone = plimsoll(path, "release", CONSUMER)
    assert (gone.returncode, gone.stdout) == (ExitCode.DONE, f"released {CONSUMER}\n")
    again = plimsoll(path, "release", CONSUMER)
    assert again.returncode == ExitCode.FAILED
    assert CONSUMER in one_line(again)


def test_a_name_that_plays_with_terminals_is_spelt_out(path: Path) -> None:
    done = plimsoll(path, "claim", "--resources", "VCPU=1", "--name", "web\x1b[2J\n")
    assert done.returncode == ExitCode.DONE
    assert done.stdout.splitlines()[0].endswith(r" (web\x1b[2J\n)")


def test_a_release_that_waits_for_placement_says_so(host: SmallHost, path: Path) -> None:
    plimsoll(path, "claim", CONSUMER, *WANTED)
    host.placement_away = True
    assert "told when it is back" in plimsoll(path, "release", CONSUMER).stdout


def test_a_refusal_names_asked_free_and_provider(path: Path) -> None:
    done = plimsoll(path, "claim", CONSUMER, "--resources", "VCPU=100,VGPU=9")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert one_line(done) == (
        f"plimsoll: The claim of consumer {CONSUMER} does not fit: "
        "100 VCPU asked, 64 free on host1 (only 64 of 64 are free); "
        "9 VGPU asked, 4 free on host1_pci_0000:84:00.0 (only 4 of 4 are free)."
    )


def test_closed_claims_are_a_refusal(host: SmallHost, path: Path) -> None:
    host.open = False
    done = plimsoll(path, "claim", *WANTED)
    assert done.returncode == ExitCode.REFUSED
    assert "Claims are closed" in one_line(done)


def test_a_dry_run_explains_each_resource_and_claims_nothing(path: Path) -> None:
    fits = plimsoll(path, "claim", "--dry-run", *WANTED)
    assert (fits.returncode, fits.stdout) == (
        ExitCode.DONE,
        "it fits\n"
        "RESOURCE CLASS  ASKED  FREE  PROVIDER                VERDICT\n"
        "VCPU                2    64  host1                   fits\n"
        "VGPU                1     4  host1_pci_0000:84:00.0  fits\n",
    )
    short = plimsoll(path, "claim", "--dry-run", "--resources", "VCPU=2,VGPU=9")
    assert (short.returncode, short.stderr) == (ExitCode.REFUSED, "")
    assert short.stdout == (
        "it does not fit\n"
        "RESOURCE CLASS  ASKED  FREE  PROVIDER                VERDICT\n"
        "VCPU                2    64  host1                   would fit\n"
        "VGPU                9     4  host1_pci_0000:84:00.0  short: only 4 of 4 are free\n"
    )
    assert json.loads(plimsoll(path, "status", "-o", "json").stdout)["claims"]["count"] == 0


def test_a_body_may_come_from_standard_input(path: Path) -> None:
    told = {"consumer": CONSUMER, "groups": [{"resources": {"VCPU": 1}}]}
    done = plimsoll(path, "claim", "--file", "-", "-o", "json", stdin=json.dumps(told))
    assert json.loads(done.stdout)["consumer"] == CONSUMER


def test_plan_ends_with_drift_found_when_there_is_something_to_change(host: SmallHost, path: Path) -> None:
    done = plimsoll(path, "plan")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing to change\n")
    host.drift()
    found = plimsoll(path, "plan")
    assert (found.returncode, found.stdout) == (
        ExitCode.DRIFT_FOUND,
        "Put the traits of host1: add CUSTOM_SHINY.\n",
    )


def test_config_show_asks_the_agent(path: Path) -> None:
    assert plimsoll(path, "config", "show").stdout == (
        "GROUP      OPTION    VALUE       ORIGIN\n"
        "[DEFAULT]  host      host1       default\n"
        "[api]      claimers  alice,@ops  /etc/plimsoll/plimsoll.conf\n"
    )


def test_a_failure_inside_the_agent_is_one_line(host: SmallHost, path: Path) -> None:
    def fault() -> None:
        raise ZeroDivisionError

    host.fault = fault
    done = plimsoll(path, "tree")
    assert done.returncode == ExitCode.FAILED
    assert "its log tells more under error" in one_line(done)


# --- output for programs


@pytest.mark.parametrize(
    "command",
    [("status",), ("tree",), ("instances",), ("plan",), ("config", "show"), ("claim", "--dry-run", *WANTED)],
)
def test_json_and_yaml_say_the_same(path: Path, command: tuple[str, ...]) -> None:
    words = [*command[:1], CONSUMER, *command[1:]] if command[0] == "claim" else command
    as_json = plimsoll(path, *words, "-o", "json")
    as_yaml = plimsoll(path, "-o", "yaml", *words)
    assert (as_json.returncode, as_yaml.returncode) == (0, 0)
    assert json.loads(as_json.stdout) == yaml.safe_load(as_yaml.stdout)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_errors_are_json_where_programs_read(path: Path, form: str) -> None:
    done = plimsoll(path, "claim", CONSUMER, "--resources", "VGPU=9", "-o", form)
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["details"]["shortfalls"][0]["provider_uuid"]) == (
        "plimsoll.claim.does_not_fit",
        GPU,
    )


# --- wrong use


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "a command is missing"),
        (("config",), "a command is missing"),
        (("bogus",), "invalid choice: 'bogus'"),
        (("status", "--timeout", "0"), "'0' is not a number of seconds above 0"),
        (("status", "--timeout", "nan"), "'nan' is not a number of seconds"),
        (("status", "-o", "xml"), "invalid choice: 'xml'"),
        (("release",), "required: CONSUMER"),
        (("release", "web1"), "'web1' is not"),
        (("claim", "web1", *WANTED), "consumer: expected a uuid, not 'web1'"),
        (("claim",), "none is given"),
        (("claim", "--resources", "VCPU=0"), "groups[0].resources.VCPU"),
        (("claim", "--flavor", "vcpus=1,memory_mb=64", "--spec", "hw:cpu_polcy=shared"), "hw:cpu_policy"),
        (("claim", "--file", "/nowhere/body.json"), "cannot be read"),
    ],
)
def test_wrong_use_is_one_line_and_2(path: Path, words: tuple[str, ...], complaint: str) -> None:
    done = plimsoll(path, *words)
    assert done.returncode == ExitCode.USAGE
    assert complaint in one_line(done)

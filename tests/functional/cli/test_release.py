"""`plimsoll release`, and what `plimsoll instances` shows before it."""

from pathlib import Path

from kits.api_host import SmallHost
from kits.cli_process import one_line, plimsoll

from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = ("--resources", "VCPU=2,VGPU=1")


def test_claim_then_instances_then_release(path: Path) -> None:
    done = plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "web1")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert done.stdout == (
        f"claimed for {CONSUMER} (web1)\n"
        "PROVIDER                RESOURCE CLASS  AMOUNT  UNITS\n"
        "host1                   VCPU                 2  -\n"
        "host1_pci_0000:84:00.0  VGPU                 1  mdev7\n"
    )
    assert f"{CONSUMER}  web1 " in plimsoll(path, "instances").stdout
    gone = plimsoll(path, "release", CONSUMER)
    assert (gone.returncode, gone.stdout) == (ExitCode.DONE, f"released {CONSUMER}\n")
    again = plimsoll(path, "release", CONSUMER)
    assert again.returncode == ExitCode.FAILED
    assert CONSUMER in one_line(again)


def test_an_instance_is_released_by_its_name_or_by_the_beginning_of_its_uuid(path: Path) -> None:
    plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "web1")
    assert plimsoll(path, "release", "web1").stdout == f"released {CONSUMER}\n"
    plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "web1")
    assert plimsoll(path, "release", CONSUMER[:6].upper()).stdout == f"released {CONSUMER}\n"


def test_two_instances_of_one_name_are_told_apart_in_the_error(path: Path) -> None:
    other = "7b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
    for consumer in (CONSUMER, other):
        plimsoll(path, "claim", consumer, "--resources", "VCPU=1", "--name", "web1")
    refused = plimsoll(path, "release", "web1")
    assert refused.returncode == ExitCode.USAGE
    assert "names 2 instances" in one_line(refused)
    assert CONSUMER in refused.stderr and other in refused.stderr


def test_a_name_that_nobody_has_is_answered_with_the_nearest(path: Path) -> None:
    plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "database")
    refused = plimsoll(path, "release", "databse")
    assert refused.returncode == ExitCode.FAILED
    assert "did you mean database?" in one_line(refused)
    assert f"{CONSUMER}  database" in plimsoll(path, "instances").stdout


def test_a_release_that_waits_for_placement_says_so(host: SmallHost, path: Path) -> None:
    plimsoll(path, "claim", CONSUMER, *WANTED)
    host.placement_away = True
    assert (
        "journaled: the agent delivers it when it may write to Placement"
        in plimsoll(path, "release", CONSUMER).stdout
    )

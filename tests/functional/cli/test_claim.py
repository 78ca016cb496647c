"""`plimsoll claim` and `plimsoll release`: what they show, what they refuse, and their exit codes."""

import json
import re
from pathlib import Path

import pytest
from kits.cli_process import one_line, output_of, plimsoll
from kits.served_agent import ServedAgent
from kits.status import MDEVS, Sight

from agent.driver import Guest, GuestState
from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = ("--resources", "VCPU=2,VGPU=1")


def test_a_name_that_plays_with_terminals_is_spelt_out(path: Path) -> None:
    done = plimsoll(path, "claim", "--resources", "VCPU=1", "--name", "web\x1b[2J\n")
    assert done.returncode == ExitCode.DONE
    assert done.stdout.splitlines()[0].endswith(r" (web\x1b[2J\n)")


def test_a_refusal_names_asked_free_and_provider(path: Path) -> None:
    done = plimsoll(path, "claim", CONSUMER, "--resources", "VCPU=100,VGPU=9")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert one_line(done) == (
        f"plimsoll: The claim of consumer {CONSUMER} does not fit: "
        "100 VCPU asked, 128 free on kvm-07 (max_unit is 32); 9 VGPU asked, 8 free on kvm-07 (max_unit is 8)."
    )


def test_amounts_in_the_units_that_people_write(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    for words, told in (
        (("--flavor", "vcpus=1,memory_mb=8GiB,disk_gb=1T"), {"MEMORY_MB": 8192, "DISK_GB": 1024, "VCPU": 1}),
        (("--resources", "MEMORY_MB=512M,DISK_GB=20"), {"MEMORY_MB": 512, "DISK_GB": 20}),
    ):
        claim = json.loads(output_of(path, "claim", *words, "-o", "json"))
        (held,) = (each["resources"] for each in claim["allocations"].values())
        assert held == told
    unclear = plimsoll(path, "claim", "--flavor", "vcpus=1,memory_mb=8GB")
    assert unclear.returncode == ExitCode.USAGE and "write GiB" in one_line(unclear)
    uneven = plimsoll(path, "claim", "--resources", "DISK_GB=512M")
    assert uneven.returncode == ExitCode.USAGE and "counted in whole GiB" in one_line(uneven)
    assert len(output_of(path, "instances").splitlines()) == 3, "a title and what was claimed"


def test_closed_claims_are_a_refusal(host: Sight, path: Path) -> None:
    host.world.operations.tracker.admission.close("it is asleep")
    done = plimsoll(path, "claim", *WANTED)
    assert done.returncode == ExitCode.REFUSED
    assert "Claims are closed" in one_line(done)


def test_a_dry_run_explains_each_resource_and_claims_nothing(path: Path) -> None:
    fits = plimsoll(path, "claim", "--dry-run", *WANTED)
    assert (fits.returncode, fits.stdout) == (
        ExitCode.DONE,
        "it fits\n"
        "RESOURCE CLASS  ASKED  FREE  PROVIDER  VERDICT\n"
        "VCPU                2   128  kvm-07    fits\n"
        "VGPU                1     8  kvm-07    fits\n",
    )
    short = plimsoll(path, "claim", "--dry-run", "--resources", "VCPU=2,VGPU=9")
    assert (short.returncode, short.stderr) == (ExitCode.REFUSED, "")
    assert short.stdout == (
        "it does not fit\n"
        "RESOURCE CLASS  ASKED  FREE  PROVIDER  VERDICT\n"
        "VCPU                2   128  kvm-07    would fit\n"
        "VGPU                9     8  kvm-07    short: max_unit is 8\n"
    )
    assert json.loads(plimsoll(path, "status", "-o", "json").stdout)["claims"]["count"] == 0


def test_a_dry_run_says_of_no_class_that_it_would_fit_where_its_cells_stopped_the_search(
    fresh: tuple[Sight, Path],
) -> None:
    """What is not free at all is short, and what guest cells need was not compared with each host cell."""
    _, path = fresh
    flavor = ("--flavor", "vcpus=200,memory_mb=512,disk_gb=1900")
    specs = ("--spec", "hw:numa_nodes=2", "--spec", "resources:VGPU=2")
    lines = plimsoll(path, "claim", "--dry-run", *flavor, *specs).stdout.splitlines()
    assert lines[:5] == [
        "it does not fit",
        "RESOURCE CLASS  ASKED    FREE  PROVIDER  VERDICT",
        "DISK_GB          1900    1800  kvm-07    short: more than is free in all",
        "MEMORY_MB         512  130560  kvm-07    enough in all cells together",
        "VGPU                2       8  kvm-07    would fit",
    ]
    assert all("guest cell" in line and line.startswith("VCPU") for line in lines[5:])
    many = plimsoll(path, "claim", "--dry-run", "--resources", "VCPU=100", "--required", "CUSTOM_X").stdout
    assert re.search(r"VCPU +100 +128 +kvm-07 +(short: max_unit is 32|not on one provider alone)", many)


def test_a_body_may_come_from_standard_input(path: Path) -> None:
    told = {"consumer": CONSUMER, "groups": [{"resources": {"VCPU": 1}}]}
    done = plimsoll(path, "claim", "--file", "-", "-o", "json", stdin=json.dumps(told))
    assert json.loads(done.stdout)["consumer"] == CONSUMER


TPM = ("--flavor", "vcpus=1,memory_mb=512", "--spec", "hw:tpm_version=2.0")
AVX512 = ("--resources", "VCPU=1,MEMORY_MB=512", "--required", "HW_CPU_X86_AVX512F")
EITHER = ("--resources", "VCPU=1", "--group", "g:VGPU=1", "--required", "g:in:CUSTOM_A,CUSTOM_B")


def test_a_missing_trait_is_a_row_of_its_own_kind(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    assert plimsoll(path, "claim", "--dry-run", *TPM).stdout == (
        "it does not fit\n"
        "RESOURCE CLASS                  ASKED    FREE  PROVIDER  VERDICT\n"
        "MEMORY_MB                         512  130560  kvm-07    would fit\n"
        "VCPU                                1     128  kvm-07    would fit\n"
        "trait COMPUTE_SECURITY_TPM_2_0      -       -  kvm-07    "
        "short: lacks trait COMPUTE_SECURITY_TPM_2_0\n"
        "trait COMPUTE_SECURITY_TPM_TIS      -       -  kvm-07    "
        "short: lacks trait COMPUTE_SECURITY_TPM_TIS\n"
    )
    assert plimsoll(path, "claim", "--dry-run", *AVX512).stdout == (
        "it does not fit\n"
        "RESOURCE CLASS            ASKED    FREE  PROVIDER  VERDICT\n"
        "MEMORY_MB                   512  130560  kvm-07    would fit\n"
        "VCPU                          1     128  kvm-07    would fit\n"
        "trait HW_CPU_X86_AVX512F      -       -  kvm-07    "
        "short: no provider that can give any of the group has trait HW_CPU_X86_AVX512F\n"
    )
    shown = plimsoll(path, "claim", "--dry-run", *EITHER).stdout.splitlines()
    assert [line.split()[0] for line in shown[2:4]] == ["VCPU", "VGPU"]
    assert (
        shown[4].startswith("trait CUSTOM_A or CUSTOM_B ")
        and "group 'g': lacks any of the traits" in shown[4]
    )
    for command in (("explain", "--capacity"), ("defrag", "--dry-run")):
        text = plimsoll(path, *command, *TPM).stdout
        assert re.search(r"trait COMPUTE_SECURITY_TPM_2_0 +- +- +kvm-07 +lacks trait COMPUTE_SECURITY", text)
        text = plimsoll(path, *command, *AVX512).stdout
        assert len(re.findall(r"trait HW_CPU_X86_AVX512F +- +- +kvm-07 +no provider", text)) == 1
    refused = plimsoll(path, "claim", *TPM)
    assert "does not fit: kvm-07 lacks trait COMPUTE_SECURITY_TPM_2_0; kvm-07 lacks trait" in one_line(
        refused
    )
    body = json.loads(plimsoll(path, "claim", *AVX512, "-o", "json").stderr)
    assert {tuple(short["traits"]) for short in body["error"]["details"]["shortfalls"]} == {
        ("HW_CPU_X86_AVX512F",)
    }


def test_claim_then_instances_then_release(path: Path) -> None:
    done = plimsoll(path, "claim", CONSUMER, *WANTED, "--name", "web1")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert done.stdout == (
        f"claimed for {CONSUMER} (web1)\n"
        "PROVIDER  RESOURCE CLASS  AMOUNT  UNITS\n"
        "kvm-07    VCPU                 2  -\n"
        f"kvm-07    VGPU                 1  {MDEVS[0]}\n"
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


def test_a_release_that_waits_for_placement_says_so(host: Sight, path: Path) -> None:
    plimsoll(path, "claim", CONSUMER, *WANTED)
    host.world.wire.cut = True
    assert (
        "journaled: the agent delivers it when it may write to Placement"
        in plimsoll(path, "release", CONSUMER).stdout
    )


UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
HELD_BY_GUEST = "VCPU=2,MEMORY_MB=1024,DISK_GB=20"
USED = {"VCPU": 2, "MEMORY_MB": 1024}


def claimed(agent: ServedAgent, state: GuestState) -> None:
    assert agent("claim", UUID, "--resources", HELD_BY_GUEST, "--name", "web1").returncode == ExitCode.DONE
    agent.world.driver.add_guest(Guest(UUID, "web1", state, USED))
    agent.world.agent.reconcile("an event")


def test_the_claim_of_a_running_guest_is_not_released_without_force(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    refused = agent("release", "web1")
    assert (refused.returncode, refused.stdout) == (ExitCode.REFUSED, "")
    (line,) = refused.stderr.splitlines()
    assert "web1" in line and "running" in line and "--force" in line
    assert "20 DISK_GB would be offered to others" in line
    assert "without it, 20 DISK_GB" in line and "2 VCPU would stay reserved only while the guest runs" in line
    assert UUID in agent("instances").stdout and "claimed" in agent("instances").stdout


def test_with_force_it_is_released_and_what_the_guest_uses_stays_reserved(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    done = agent("release", "web1", "--force")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, f"released {UUID}\n")
    assert "UNCLAIMED" in agent("instances").stdout
    agent.world.agent.reconcile("the release")
    (root, *_) = json.loads(agent("tree", "-o", "json").stdout)["resource_providers"]
    assert root["inventories"]["MEMORY_MB"]["reserved"] == 512 + 1024
    assert root["usages"]["VCPU"] == 0 and root["usages"]["DISK_GB"] == 0


def test_a_guest_that_has_stopped_since_the_last_pass_is_released(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    agent.world.driver.remove_guest(UUID)
    assert agent("release", "web1").returncode == ExitCode.DONE


def test_a_guest_that_is_shut_off_needs_no_force(agent: ServedAgent) -> None:
    claimed(agent, GuestState.SHUTOFF)
    assert agent("release", "web1").returncode == ExitCode.DONE


@pytest.mark.parametrize("memory_mb", [512, 4096])
def test_the_repair_that_the_audit_offers_works_also_for_a_large_guest(
    agent: ServedAgent, memory_mb: int
) -> None:
    """What the guest uses is reserved: that is not counted against the guest itself."""
    (root, *_) = json.loads(agent("tree", "-o", "json").stdout)["resource_providers"]
    capacity = root["inventories"]["MEMORY_MB"]["capacity"]
    used = {"VCPU": 1, "MEMORY_MB": capacity if memory_mb == 4096 else memory_mb}
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, used))
    found = agent("look")
    assert found.returncode == ExitCode.DRIFT_FOUND
    assert f"repair: claim what the guest {UUID} uses" in found.stdout
    healed = agent("audit", "--heal")
    assert (healed.returncode, healed.stderr) == (ExitCode.DRIFT_HEALED, "")
    assert agent("look").returncode == ExitCode.DONE
    assert "claimed" in agent("instances").stdout


def test_the_first_alternative_that_fits_is_claimed_and_found_again(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    words = ("--name", "ai1", "--resources", "VCPU=100000", "--or", "--resources", "VCPU=2")
    dry = plimsoll(path, "claim", *words, "--dry-run")
    assert dry.returncode == ExitCode.DONE
    assert [line for line in dry.stdout.splitlines() if line.startswith("alternative")] == [
        "alternative 1 of 2: it does not fit",
        "alternative 2 of 2: it fits",
    ]
    too_much = ("--name", "ai2", "--resources", "VCPU=100000", "--or", "--resources", "VCPU=99999")
    unfit = plimsoll(path, "claim", *too_much, "--dry-run", "-o", "json")
    assert unfit.returncode == ExitCode.REFUSED
    assert json.loads(unfit.stdout)["asked"] == {"VCPU": 100000}  # the first, as in the refusal of a claim
    made = json.loads(output_of(path, "claim", *words, "-o", "json"))
    assert [each["resources"] for each in made["allocations"].values()] == [{"VCPU": 2}]
    assert json.loads(output_of(path, "claim", *words, "-o", "json"))["consumer"] == made["consumer"]
    none = plimsoll(path, "claim", "--new", "--resources", "VCPU=100000", "--or", "--resources", "VCPU=99999")
    assert none.returncode == ExitCode.REFUSED
    assert one_line(none).startswith("plimsoll: None of 2 alternatives is granted. 1: The claim of")
    assert " 2: The claim of" in one_line(none)
    domain = plimsoll(
        path, "claim", "--domain", "-", "--resources", "VCPU=3", "--or", "--resources", "VCPU=2"
    )
    assert domain.returncode == ExitCode.USAGE
    assert one_line(domain).startswith("plimsoll: claim: --or cannot go with --domain")


def test_a_resize_keeps_the_alternative_that_it_is_not_told_to_change(
    fresh: tuple[Sight, Path], tmp_path: Path
) -> None:
    _, path = fresh
    too_much, other = tmp_path / "first.json", tmp_path / "second.json"
    too_much.write_text(json.dumps({"name": "x", "groups": [{"resources": {"VCPU": 100000}}]}))
    other.write_text(json.dumps({"name": "y", "consumer": "no", "flavor": {"vcpus": 2, "memory_mb": 64}}))
    made = output_of(path, "claim", "--name", "ai3", "--file", str(too_much), "--or", "--file", str(other))
    assert made.splitlines()[0].endswith("(ai3), alternative 2")
    assert "claimed, alternative 2" in output_of(path, "instances")
    assert "It requested alternative 2, 64 MEMORY_MB, 2 VCPU" in output_of(path, "explain", "ai3")
    begin = ("move", "begin", "ai3", "--kind", "resize", "--flavor", "vcpus=3,memory_mb=64")
    more = ("--or", "--flavor", "vcpus=4,memory_mb=64")
    for words, vcpus in ((more, 4), ((*more, "--alternative", "any"), 3), ((*more, "--alternative", "1"), 3)):
        move = json.loads(output_of(path, *begin, *words, "-o", "json"))
        assert move["new"]["request"]["groups"][0]["resources"]["VCPU"] == vcpus
        output_of(path, "move", "revert", move["migration"])
    for bad in ("0", "00", "0x1", "one", "-1", "100"):
        refused = plimsoll(path, *begin, *more, f"--alternative={bad}")
        assert refused.returncode == ExitCode.USAGE
        assert f"--alternative {bad!r} is neither a number from 1 nor `any`" in one_line(refused)
    assert "and the request has 2: name one" in one_line(plimsoll(path, *begin, *more, "--alternative", "3"))

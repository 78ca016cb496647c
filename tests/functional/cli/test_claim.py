"""`plimsoll claim` as a process against a served host: what it shows, and its exit codes."""

import json
import re
from pathlib import Path

from kits.api_host import SmallHost
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import Sight

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
        "100 VCPU asked, 64 free on host1 (only 64 of 64 are free); "
        "9 VGPU asked, 4 free on host1_pci_0000:84:00.0 (only 4 of 4 are free)."
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

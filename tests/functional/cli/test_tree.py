"""`plimsoll tree` as a process against a served host."""

from pathlib import Path

from kits.cli_process import plimsoll, plimsoll_started

from agent.errors import ExitCode

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


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
    ascii_only = plimsoll_started(
        path, "tree", "--traits", environment={"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    )
    assert ascii_only.stdout.isascii()
    assert "   |  traits: HW_NUMA_ROOT\n" in ascii_only.stdout

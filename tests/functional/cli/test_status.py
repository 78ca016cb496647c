"""`plimsoll status` as a process against a served host."""

from pathlib import Path

from kits.api_host import SmallHost
from kits.cli_process import plimsoll

from agent.errors import ExitCode


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
        "gate       disabled\n"
        "findings   none, audited 2026-09-21 14:13:20+00:00\n"
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
        "claims     0, closed\n"
        "gate       disabled\n"
        "findings   none, audited 2026-09-21 14:13:20+00:00\n"
        "last pass  none yet\n"
    ) in plimsoll(path, "status").stdout

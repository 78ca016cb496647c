"""`plimsoll plan` as a process against a served host."""

from pathlib import Path

from kits.api_host import SmallHost
from kits.cli_process import plimsoll

from agent.errors import ExitCode


def test_plan_ends_with_drift_found_when_there_is_something_to_change(host: SmallHost, path: Path) -> None:
    done = plimsoll(path, "plan")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing to change\n")
    host.drift()
    found = plimsoll(path, "plan")
    assert (found.returncode, found.stdout) == (
        ExitCode.DRIFT_FOUND,
        "Put the traits of host1: add CUSTOM_SHINY.\n",
    )

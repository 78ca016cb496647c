"""The lab's node for the tests in this folder, which are skipped where there is no lab."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from labnode import ROOT, Node, wheels

LAB = "PLIMSOLL_LAB"
KEEP = "PLIMSOLL_LAB_KEEP"
"""If not empty: the agent that is on the node is tested, not installed anew; "state": with what is there."""
TRANSCRIPT = "PLIMSOLL_LAB_TRANSCRIPT"
UP_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))
            if not os.environ.get(LAB):
                item.add_marker(pytest.mark.skip(reason=f"{LAB} names no lab command; see docs/lab.md"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the agent installed from this checkout; one that was up already is left up."""
    folder = tmp_path_factory.mktemp("lab")
    path = Path(os.environ.get(TRANSCRIPT) or folder / "transcript.md")
    with path.open("w", encoding="utf-8") as transcript:
        found = Node(os.environ[LAB], transcript)
        was_up = found.lab("exec", "true").returncode == 0
        if not was_up:
            up = found.lab("up", timeout_s=UP_TIMEOUT_S)
            assert up.returncode == 0, up.stdout + up.stderr
        try:
            found.title("The agent under systemd")
            if os.environ.get(KEEP) != "state":
                found.run("labdev reset", note=False)
                found.run(
                    "systemctl stop plimsoll-agent; rm -rf /var/lib/plimsoll", note=False, ends=(0, 1, 5)
                )
            if not os.environ.get(KEEP):
                found.install(_checkout(folder / "src"), wheels(ROOT / ".lab" / "wheels"))
            yield found
        finally:
            if not was_up:
                found.lab("down")


def _checkout(folder: Path) -> Path:
    """The files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    return folder

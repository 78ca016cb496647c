"""The lab's nodes for the tests in this folder, which are skipped where there is no lab."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.paths import CHECKOUT, TESTS

sys.path.insert(0, str(TESTS / "lab"))

from kits.lab_node import Lab, Node, Prepare, Transcript

LAB = "PLIMSOLL_LAB"
KEEP = "PLIMSOLL_LAB_KEEP"
"""If not empty: the agent that is on the node is tested, not installed anew; "state": with what is there."""
PACKAGE = "PLIMSOLL_DEB"
OLDER_PACKAGE = "PLIMSOLL_DEB_BEFORE"
TRANSCRIPT = "PLIMSOLL_LAB_TRANSCRIPT"
ROOT = CHECKOUT
TEST_TIMEOUT_S = 1200
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=3.0, help="for how long devices change at random")
    parser.addoption("--seed", type=int, help="what draws which of them change")
    parser.addoption("--reboots", type=int, default=2, help="reboots with random carvings, of each mode")
    parser.addoption("--domains", type=int, default=50, help="how many drawn domains become guests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = TESTS / "lab"
    for item in items:
        if here in item.path.parents:
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))
            if not os.environ.get(LAB):
                item.add_marker(pytest.mark.skip(reason=f"{LAB} names no lab command; see docs/lab.md"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Nodes that were up before are left up."""
    path = Path(os.environ.get(TRANSCRIPT) or tmp_path_factory.mktemp("lab") / "transcript.md")
    with path.open("w", encoding="utf-8") as file:
        transcript = Transcript(file)
        found = Lab(os.environ[LAB], transcript)
        were_up, _ = found.running()
        try:
            yield found
        finally:
            transcript.close()
            if not were_up:
                found.down()


@pytest.fixture(scope="session")
def prepare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    folder = tmp_path_factory.mktemp("checkout")

    def prepared(count: int, vf_mode: str = "mdev") -> list[Node]:
        nodes = lab.nodes(count, vf_mode)
        new = [node for node in nodes if node.number not in lab.prepared and not os.environ.get(KEEP)]
        if new:
            lab.transcript.title("The agent is installed")
            install = _installer(folder)
            with ThreadPoolExecutor(len(new)) as pool:
                for _ in pool.map(install, new):
                    pass
            lab.prepared.update(node.number for node in new)
        for node in nodes:
            if os.environ.get(KEEP) != "state":
                node.forget()
        return nodes

    return prepared


@pytest.fixture(scope="module")
def bare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node that has nothing but libvirt, with the package in /root, and the older one in /root/older."""
    (node,) = lab.nodes(1)
    lab.prepared.discard(node.number)
    node.run("labdev reset; systemctl start libvirtd", note=False)
    node.run(
        "systemctl disable --now plimsoll-agent 2>/dev/null; "
        "test ! -e /etc/libvirt/hooks/qemu.d/50-plimsoll || plimsoll gate disable; "
        "dpkg --purge plimsoll 2>&1; rm -rf /opt/plimsoll /usr/bin/plimsoll /etc/systemd/system/plimsoll* "
        "/usr/local/bin/plimsoll "
        "/etc/sysusers.d/plimsoll.conf /etc/tmpfiles.d/plimsoll.conf "
        "/var/lib/plimsoll /etc/plimsoll /root/older; systemctl daemon-reload; "
        "! id plimsoll 2>/dev/null || userdel plimsoll",
        note=False,
        ends=(0, 1),
    )
    folder = tmp_path_factory.mktemp("package")
    shutil.copy(os.environ[PACKAGE], folder)
    if os.environ.get(OLDER_PACKAGE):
        (folder / "older").mkdir()
        shutil.copy(os.environ[OLDER_PACKAGE], folder / "older")
    node.push(folder, "/root/package")
    node.run("rm -f /root/plimsoll_*.deb; mv /root/package/* /root/; apt-get update -qq", note=False)
    return node


def _installer(folder: Path) -> Callable[[Node], None]:
    """Puts the agent on a node, from a Debian package if one is named, else from the checkout."""
    package = os.environ.get(PACKAGE)
    if package:
        copy = folder / "packages" / Path(package).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(package, copy)
        return lambda node: node.install_package(copy)
    source = folder / "src"
    if not source.exists():
        _copy_checkout(source)
        _build(source, folder / "wheel")
    (wheel,) = (folder / "wheel").glob("*.whl")
    needed = _needed(wheel, ROOT / ".lab" / "wheels")
    return lambda node: node.install_wheel(wheel, needed)


def _copy_checkout(folder: Path) -> None:
    """The files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)


def _build(source: Path, folder: Path) -> None:
    subprocess.run(
        [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], check=True
    )


def _needed(wheel: Path, folder: Path) -> Path:
    """What the agent needs, for the node's Python, with pip's own client; once for each set of them."""
    listed = (ROOT / "setup.py").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    done = folder / f"done-{hashlib.sha256(listed).hexdigest()[:16]}"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        node = ["--only-binary=:all:", "--python-version", "3.13", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*PIP, "download", "-q", *node, "-d", str(folder), str(wheel)], check=True)
        (folder / wheel.name).unlink()
        done.touch()
    return folder

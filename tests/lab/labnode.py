"""A node of the lab: a hypervisor with real SR-IOV, mediated devices, NUMA, libvirtd and systemd in a virtual
machine. The lab is a program of its own, named by PLIMSOLL_LAB; what is done on the node is written down.
"""

import importlib.metadata
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 400
UNIT = "plimsoll-agent"
CONFIG = """[DEFAULT]
compute_driver = libvirt
host = hv1

[placement]
kind = embedded
serve = unix:/run/plimsoll/placement.sock
"""

CLIENT = """#!/usr/bin/python3
import http.client, socket, sys
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/plimsoll/placement.sock")
client = Unix("localhost", timeout=60)
client.request(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None,
               {"OpenStack-API-Version": "placement 1.39", "X-Auth-Token": "admin",
                "Content-Type": "application/json"})
answer = client.getresponse()
print(answer.read().decode())
sys.exit(answer.status >= 400)
"""
"""A client of Placement that needs nothing of the agent."""


class Node:
    """Commands on the node; each is checked, and goes with its output into the transcript."""

    def __init__(self, lab: str, transcript: TextIO) -> None:
        self._lab = lab
        self._transcript = transcript

    def lab(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*shlex.split(self._lab), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def run(self, command: str, *, ends: int | tuple[int, ...] = 0, note: bool = True) -> str:
        """What the command prints. `ends` are the exit codes that are good."""
        done = self.lab("exec", command)
        output = done.stdout + (done.stderr if done.returncode else "")
        if note:
            self.write(f"$ {command}\n{output.rstrip()}\n")
        allowed = (ends,) if isinstance(ends, int) else ends
        assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, command: str) -> Any:
        return json.loads(self.run(command, note=False))

    def write(self, text: str) -> None:
        self._transcript.write(text)
        self._transcript.flush()

    def title(self, text: str) -> None:
        self.write(f"\n## {text}\n\n")

    def wait(self, what: str, holds: Callable[[], Any], timeout_s: float = 180) -> Any:
        """What `holds` returns once that is true."""
        end = time.monotonic() + timeout_s
        while not (value := holds()):
            assert time.monotonic() < end, f"not within {timeout_s} s: {what}\n{self.log()}"
            time.sleep(2)
        return value

    def log(self) -> str:
        return self.run(f"journalctl -u {UNIT} -o cat -n 30", note=False)

    # The agent

    def install(self, source: Path, wheels: Path) -> None:
        assert self.lab("push", str(source), "/root/src").returncode == 0
        assert self.lab("push", str(wheels), "/root/wheels").returncode == 0
        self.run(
            "test -d /opt/plimsoll || python3 -m venv --system-site-packages /opt/plimsoll; "
            "/opt/plimsoll/bin/pip install -q --no-index --force-reinstall --no-deps "
            "--find-links /opt/wheels --find-links /root/wheels /root/src && "
            "/opt/plimsoll/bin/pip install -q --no-index --find-links /opt/wheels --find-links /root/wheels "
            "/root/src && ln -sf /opt/plimsoll/bin/plimsoll /usr/bin/plimsoll"
        )
        self.run(f"cat >/root/placement <<'EOF'\n{CLIENT}EOF\nchmod 0755 /root/placement", note=False)
        self.run(
            "cd /root/src && cp systemd/sysusers.d/*.conf /usr/lib/sysusers.d/ && systemd-sysusers && "
            "cp systemd/plimsoll-agent.service /etc/systemd/system/ && systemctl daemon-reload && "
            f"usermod -aG libvirt plimsoll && systemctl enable {UNIT}"
        )

    def configure(self, text: str) -> None:
        """Put the configuration in place; the agent is not told."""
        self.run(
            "install -d -g plimsoll -m 0750 /etc/plimsoll && "
            f"cat >/etc/plimsoll/plimsoll.conf <<'EOF'\n{CONFIG}\n{text}EOF"
        )

    def start(self) -> None:
        self.run(f"systemctl restart {UNIT} && plimsoll status")

    def totals(self) -> dict[str, dict[str, int]]:
        """{provider: {class: total}}"""
        return {
            each["name"]: {name: inventory["total"] for name, inventory in each["inventories"].items()}
            for each in self.providers().values()
        }

    def providers(self) -> Mapping[str, Mapping[str, Any]]:
        """{uuid: provider}"""
        return {each["uuid"]: each for each in self.json("plimsoll -o json tree")["resource_providers"]}

    def units(self) -> dict[str, list[tuple[str, str, str]]]:
        """{guest's name: [(class, unit, device)]}"""
        return {
            each["name"]: [
                (unit["resource_class"], unit["unit"], unit["device"]) for unit in each["guest"]["units"]
            ]
            for each in self.json("plimsoll -o json instances")["instances"]
            if each["guest"]
        }

    def placement(self, method: str, path: str, body: object = None) -> Any:
        """A request to the agent's own placement, as another client sends it."""
        data = "" if body is None else shlex.quote(json.dumps(body))
        text = self.run(f"/root/placement {method} {path} {data}".rstrip())
        return json.loads(text) if text.strip() else None

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """{provider's name: {class: amount}} of a consumer, as placement has it."""
        names = {uuid: each["name"] for uuid, each in self.providers().items()}
        found = self.placement("GET", f"/allocations/{consumer}")["allocations"]
        return {names[uuid]: each["resources"] for uuid, each in found.items()}


def wheels(folder: Path) -> Path:
    """What the agent needs, for the node's Python, with pip's own client; once."""
    done = folder / "done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        needed = [each for each in importlib.metadata.requires("plimsoll") or [] if "extra ==" not in each]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        node = ["--only-binary=:all:", "--python-version", "3.13", "-c", "constraints.txt"]
        subprocess.run([*pip, *node, "-d", str(folder), *needed], cwd=ROOT, check=True)
        done.touch()
    return folder

"""The lab's nodes: hypervisors with real SR-IOV, mediated devices, NUMA, libvirtd and systemd, in virtual
machines.

The lab is a program of its own, named by PLIMSOLL_LAB; what is done on the nodes is written down. Nothing
here imports the agent: a node has it from the checkout, or from a Debian package.
"""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

COMMAND_TIMEOUT_S = 900
UP_TIMEOUT_S = 600
UP_TRIES = 2
REBOOT_TIMEOUT_S = 400
START_TIMEOUT_S = 900
UNIT = "plimsoll-agent"
NODES_MAX = 2

PLACEMENT_SOCKET = "/run/plimsoll/placement.sock"
"""Where the agent serves the placement that it keeps, by `alone`."""

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

Prepare = Callable[..., "list[Node]"]
"""`prepare(count, vf_mode)`: nodes with the agent installed, stopped, and nothing remembered."""

GuestUnits = dict[str, list[tuple[str, str, str]]]
"""{guest's name: [(class, unit, device)], sorted}"""


def alone(host: str, more: str = "") -> str:
    """The settings of a host that keeps its placement itself; `more` is put below."""
    return (
        f"[DEFAULT]\ncompute_driver = libvirt\nhost = {host}\n\n"
        f"[placement]\nkind = embedded\nserve = unix:{PLACEMENT_SOCKET}\n\n{more}"
    )


TRUTH = Path(__file__).with_name("lab_truth.py")


@dataclass(frozen=True, slots=True)
class Truth:
    """What a node has: `totals` {provider: {class: total}}, devices only; `guests` what they use, `states`
    how they are; `mdevs` {uuid: its card's address}; `functions` {card's address: its virtual functions'}.
    """

    totals: dict[str, dict[str, int]]
    guests: GuestUnits
    states: dict[str, str]
    mdevs: dict[str, str]
    functions: dict[str, list[str]]

    @property
    def units(self) -> dict[str, str]:
        """{mediated device or virtual function: its card's address}"""
        return {**self.mdevs, **{vf: card for card, vfs in self.functions.items() for vf in vfs}}


class Transcript:
    """What was done and what it said, as Markdown."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._open = False

    def title(self, text: str) -> None:
        self._fence(False)
        self._write(f"\n### {text}\n")

    def command(self, prompt: str, command: str, output: str) -> None:
        self._fence(True)
        self._write(f"{prompt} {command}\n" + (f"{output.rstrip()}\n" if output.strip() else ""))

    def close(self) -> None:
        self._fence(False)

    def _fence(self, wanted: bool) -> None:
        if wanted != self._open:
            self._write("\n```console\n" if wanted else "```\n")
            self._open = wanted

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


class Lab:
    """The lab's command: nodes that run, and their settings."""

    def __init__(self, command: str, transcript: Transcript) -> None:
        self._command = shlex.split(command)
        self.transcript = transcript
        self.prepared: set[int] = set()
        """The nodes that the agent was installed on since they came up."""

    def call(
        self,
        *arguments: str,
        timeout_s: float = COMMAND_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )

    def running(self) -> tuple[int, str]:
        """How many nodes answer, and how GPUs' virtual functions are given away there: "mdev" or "vfio"."""
        answers = [self.call("exec", "-n", str(n), _VF_MODE) for n in range(1, NODES_MAX + 1)]
        modes = [answer.stdout.strip() for answer in answers if answer.returncode == 0]
        return len(modes), modes[0] if modes else ""

    def nodes(self, count: int, vf_mode: str = "mdev") -> "list[Node]":
        """That many nodes that answer, and no more; those that run already are taken as they are."""
        if self.running() != (count, vf_mode):
            self._up(count, vf_mode)
        return [Node(self, number) for number in range(1, count + 1)]

    def _up(self, count: int, vf_mode: str) -> None:
        """An emulated kernel may panic at its start, seen on a busy machine: then once more, from nothing."""
        for _ in range(UP_TRIES):
            self.down()
            try:
                up = self.call(
                    "up", str(count), timeout_s=UP_TIMEOUT_S, environment={"AGENT_LAB_VF_MODE": vf_mode}
                )
            except subprocess.TimeoutExpired:
                problem = f"not up within {UP_TIMEOUT_S} s"
                continue
            if up.returncode == 0:
                return
            problem = up.stdout + up.stderr
        raise AssertionError(problem)

    def down(self) -> None:
        self.prepared.clear()
        self.call("down")


_VF_MODE = "cat /sys/module/vgpusim/parameters/vf_mode"


class Node:
    """Commands on one node; each is checked, and goes with its output into the transcript."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab = lab
        self.number = number
        self.name = f"hv{number}"
        self._has_truth = False

    def run(self, command: str, *, ends: int | tuple[int, ...] = 0, note: bool = True) -> str:
        """What the command prints. `ends` are the exit codes that are good."""
        done = self.lab.call("exec", "-n", str(self.number), command)
        if note:
            output = done.stdout + (done.stderr if done.returncode else "")
            self.lab.transcript.command(f"{self.name}#", command, output)
        allowed = (ends,) if isinstance(ends, int) else ends
        assert done.returncode in allowed, f"{self.name}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, command: str) -> str:
        """What the command prints, whatever becomes of it; not written down."""
        return self.lab.call("exec", "-n", str(self.number), command).stdout

    def json(self, command: str) -> Any:
        return json.loads(self.run(command, note=False))

    def push(self, folder: Path, destination: str) -> None:
        pushed = self.lab.call("push", "-n", str(self.number), str(folder), destination)
        assert pushed.returncode == 0, pushed.stderr

    def gone(self, *paths: str) -> None:
        """Check that none of the paths is there, not even as a link to nothing."""
        left = self.run(
            f"for path in {' '.join(paths)}; do test ! -e $path -a ! -L $path || echo $path; done"
        )
        assert left == "", f"{self.name}: still there: {left}"

    def named_plimsoll(self) -> set[str]:
        """The paths of the node whose last part has `plimsoll`, but for what tests put there, and logs."""
        found = self.run(
            "find / -xdev -name '*plimsoll*' ! -path '/root/*' ! -path '/var/log/*'; "
            "find /run -maxdepth 1 -name '*plimsoll*'",
            note=False,
        )
        return set(found.splitlines())

    def write(self, path: str, text: str, *, mode: str = "0644", owner: str = "root:root") -> None:
        """Put a file in place."""
        self.run(
            f"cat >{path} <<'END-OF-FILE'\n{text}\nEND-OF-FILE\nchmod {mode} {path}; chown {owner} {path}",
            note=False,
        )

    def title(self, text: str) -> None:
        self.lab.transcript.title(text)

    def wait(self, what: str, holds: Callable[[], Any], timeout_s: float = 240) -> Any:
        """What `holds` returns once that is true."""
        end = time.monotonic() + timeout_s
        while not (value := holds()):
            assert time.monotonic() < end, f"{self.name}: not within {timeout_s} s: {what}\n{self.log()}"
            time.sleep(2)
        return value

    def reboot(self) -> None:
        """Until the node answers again, with whatever starts by itself starting."""
        boot = self.run("cat /proc/sys/kernel/random/boot_id", note=False)
        self.run("systemctl reboot", ends=(0, 255))
        self.wait(
            "it answers again",
            lambda: self.ask("cat /proc/sys/kernel/random/boot_id") not in ("", boot),
            REBOOT_TIMEOUT_S,
        )

    def log(self) -> str:
        return self.ask(f"journalctl -u {UNIT} -o cat -n 40")

    # The agent

    def install_wheel(self, wheel: Path, needed: Path) -> None:
        """The wheel into a virtual environment, and its service, by the command that is in it."""
        self.push(needed, "/root/wheels")
        self.push(wheel.parent, "/root/wheel")
        pip = "/opt/plimsoll/bin/pip install -q --no-index --find-links /root/wheels"
        self.run(
            "test -d /opt/plimsoll || python3 -m venv --system-site-packages /opt/plimsoll; cd /root/wheel; "
            f"{pip} --force-reinstall --no-deps {wheel.name} && {pip} {wheel.name}"
        )
        self.run("/opt/plimsoll/bin/plimsoll install-service && systemctl stop plimsoll-agent")
        self._admit()

    def install_package(self, package: Path) -> None:
        """A Debian package; what it depends on comes from the distribution."""
        self.push(package.parent, "/root/packages")
        self.run(
            "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && "
            f"apt-get install -qy --no-install-recommends /root/packages/{package.name} 2>&1 | tail -n 3"
        )
        self._admit()

    def _admit(self) -> None:
        """What docs/drivers.md says of permissions, the start at boot, and a client of placement.

        Beside other work an emulated node imports the agent's modules for longer than systemd waits.
        """
        folder = "/etc/systemd/system/plimsoll-.service.d"
        self.run(f"mkdir -p {folder}", note=False)
        self.write(f"{folder}/lab.conf", f"[Service]\nTimeoutStartSec={START_TIMEOUT_S}")
        self.run(f"systemctl daemon-reload; usermod -aG libvirt plimsoll && systemctl enable {UNIT} 2>&1")
        self.write("/root/placement", CLIENT, mode="0755")

    def forget(self) -> None:
        """As before the agent first ran: no state, no guests, no devices."""
        self.run(f"systemctl stop {UNIT}; rm -rf /var/lib/plimsoll/*", note=False, ends=(0, 5))
        self.run("labdev reset", note=False)

    def configure(self, text: str, *, note: bool = True) -> None:
        """Put the settings in place; the agent is not told."""
        self.run(f"cat >/etc/plimsoll/plimsoll.conf <<'EOF'\n{text}EOF", note=note)

    def start(self) -> None:
        """Until it is ready: on a busy machine libvirt may need more than one try."""
        self.run(f"systemctl restart {UNIT}")
        self.ready()
        self.run("plimsoll status")

    def ready(self, timeout_s: float = 300) -> None:
        """Wait until the agent says so."""
        self.wait(
            "the agent is ready",
            lambda: re.search(r'"state": "ready"', self.ask("plimsoll -o json status")),
            timeout_s,
        )

    def truth(self, types: str, known: Mapping[str, str] | None = None) -> "Truth":
        """What sysfs and libvirt say, without the agent; see lab_truth.py."""
        if not self._has_truth:
            self.write("/root/lab_truth.py", TRUTH.read_text(encoding="utf-8"))
            self._has_truth = True
        found = self.json(
            f"python3 /root/lab_truth.py {self.name} {types} {shlex.quote(json.dumps(known or {}))}"
        )
        guests = {name: [(u[0], u[1], u[2]) for u in units] for name, units in found["guests"].items()}
        return Truth(**{**found, "guests": guests})

    def totals(self) -> dict[str, dict[str, int]]:
        """{provider: {class: total}}"""
        return {
            each["name"]: {name: inventory["total"] for name, inventory in each["inventories"].items()}
            for each in self.providers().values()
        }

    def devices(self) -> dict[str, dict[str, int]]:
        """{provider: {class: total}} of those that are devices' and have any."""
        return {
            name: amounts
            for name, amounts in self.totals().items()
            if amounts and re.search(r"_(pci|net)_", name)
        }

    def capacity(self, provider: str) -> dict[str, int]:
        """{class: how much may be used}"""
        (found,) = [each["inventories"] for each in self.providers().values() if each["name"] == provider]
        return {
            name: int((each["total"] - each["reserved"]) * each["allocation_ratio"])
            for name, each in found.items()
        }

    def usages(self, provider: str) -> dict[str, int]:
        (found,) = [each["usages"] for each in self.providers().values() if each["name"] == provider]
        return dict(found)

    def providers(self) -> Mapping[str, Mapping[str, Any]]:
        """{uuid: provider}"""
        return {each["uuid"]: each for each in self.json("plimsoll -o json tree")["resource_providers"]}

    def units(self) -> GuestUnits:
        """What the guests use, as the agent sees it."""
        return {
            each["name"]: sorted(
                (unit["resource_class"], unit["unit"], unit["device"]) for unit in each["guest"]["units"]
            )
            for each in self.json("plimsoll -o json instances")["instances"]
            if each["guest"]
        }

    def placement(self, method: str, path: str, body: object = None, *, note: bool = True) -> Any:
        """A request to the placement that this node's agent keeps, as another client sends it."""
        data = "" if body is None else shlex.quote(json.dumps(body))
        text = self.run(f"/root/placement {method} {path} {data}".rstrip(), note=note)
        return json.loads(text) if text.strip() else None

    def held(self, consumer: str, *, note: bool = True) -> dict[str, dict[str, int]]:
        """{provider's name: {class: amount}} of a consumer, as this node's placement has it."""
        providers = self.placement("GET", "/resource_providers", note=False)["resource_providers"]
        names = {each["uuid"]: each["name"] for each in providers}
        found = self.placement("GET", f"/allocations/{consumer}", note=note)["allocations"]
        return {names[uuid]: each["resources"] for uuid, each in found.items()}

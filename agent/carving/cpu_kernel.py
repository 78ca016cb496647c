"""The power of CPUs in sysfs, and whether guests may start: what the kernel and libvirt tell below / .

Source: https://docs.kernel.org/core-api/cpu_hotplug.html,
https://docs.kernel.org/admin-guide/pm/cpufreq.html
"""

from collections.abc import Iterable
from pathlib import Path

from agent.carving.cpus import OFFLINE, ONLINE, CpuStep
from agent.carving.sysfs import read_text, write_text

CPUS = Path("sys/devices/system/cpu")
DAEMONS = ("run/libvirtd.pid", "run/virtqemud.pid")
GUESTS = Path("run/libvirt/qemu")
_STATES = {"1": ONLINE, "0": OFFLINE}
_VALUES = {state: value for value, state in _STATES.items()}


class CpuKernel:
    """The CPUs of the host whose root directory is `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def states(self, cpus: Iterable[int], *, governors: bool) -> dict[int, str]:
        """{CPU: its state} for those whose state the kernel can change; `governors`: the state is one."""
        found = {cpu: self._state(cpu, governors=governors) for cpu in cpus}
        return {cpu: state for cpu, state in found.items() if state is not None}

    def guests_may_start(self) -> bool:
        """Whether libvirt runs, or guests do that it started: another one may start at any time."""
        return any((self._root / name).exists() for name in DAEMONS) or any(
            (self._root / GUESTS).glob("*.xml")
        )

    def do(self, step: CpuStep) -> None:
        """Take the step. Raises OSError where the kernel refuses it."""
        governors = step.state not in _VALUES
        write_text(self._file(step.cpu, governors=governors), _VALUES.get(step.state, step.state))

    def _state(self, cpu: int, *, governors: bool) -> str | None:
        text = read_text(self._file(cpu, governors=governors)) or ""
        return text or None if governors else _STATES.get(text)

    def _file(self, cpu: int, *, governors: bool) -> Path:
        name = "cpufreq/scaling_governor" if governors else "online"
        return self._root / CPUS / f"cpu{cpu}" / name

"""Takes the steps that bring dedicated CPUs up for claims, and down where no instance has them.

Source: https://docs.kernel.org/core-api/cpu_hotplug.html,
https://docs.kernel.org/admin-guide/pm/cpufreq.html
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.carving.cpus import OFFLINE, ONLINE, CpuHolds, CpuStep, cpu_steps, managed_cpus, state_of_down
from agent.carving.files import read_cpu_file
from agent.carving.kernel import read_text, write_text
from agent.driver import HostSettings

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
        texts = {cpu: read_text(self._file(cpu, governors=governors)) or "" for cpu in cpus}
        if governors:
            return {cpu: text for cpu, text in texts.items() if text}
        return {cpu: _STATES[text] for cpu, text in texts.items() if text in _STATES}

    def guests_may_start(self) -> bool:
        """Whether libvirt runs, or guests do that it started: another one may start at any time."""
        return any((self._root / name).exists() for name in DAEMONS) or any(
            (self._root / GUESTS).glob("*.xml")
        )

    def do(self, step: CpuStep) -> None:
        """Take the step. Raises OSError where the kernel refuses it."""
        governors = step.state not in _VALUES
        write_text(self._file(step.cpu, governors=governors), _VALUES.get(step.state, step.state))

    def _file(self, cpu: int, *, governors: bool) -> Path:
        name = "cpufreq/scaling_governor" if governors else "online"
        return self._root / CPUS / f"cpu{cpu}" / name


ROUNDS_MAX = 8


@dataclass(frozen=True, slots=True)
class CpuPower:
    """Compares the CPUs with the agent's file in `folder`, which may be missing, and changes them."""

    kernel: CpuKernel
    settings: HostSettings
    folder: Path | None

    def look(self) -> tuple[CpuStep, ...]:
        """The steps that are to be taken now. Raises StateError."""
        return self._steps(self._holds())

    def apply(self, on_step: Callable[[CpuStep], None]) -> tuple[tuple[CpuStep, ...], tuple[str, ...]]:
        """(the steps that were taken, sentences on those that failed).

        Begins again where the agent changed its file meanwhile; a step that failed is not tried again.
        `on_step` is called before each step. Raises StateError.
        """
        tried: dict[CpuStep, None] = {}
        failures = []
        holds = self._holds()
        for _ in range(ROUNDS_MAX):
            for step in self._steps(holds):
                is_down = step.state == state_of_down(self.settings)
                if step in tried or (is_down and self.kernel.guests_may_start()):
                    continue
                on_step(step)
                tried[step] = None
                try:
                    self.kernel.do(step)
                except OSError as error:
                    failures.append(f"cannot {step.text}: {error.strerror or error}.")
            before, holds = holds, self._holds()
            if holds == before:
                break
        return tuple(tried), tuple(failures)

    def _holds(self) -> CpuHolds | None:
        return None if self.folder is None or not self.folder.is_dir() else read_cpu_file(self.folder)

    def _steps(self, holds: CpuHolds | None) -> tuple[CpuStep, ...]:
        governors = self.settings.cpu_power_management_strategy == "governor"
        seen = self.kernel.states(sorted(managed_cpus(self.settings)), governors=governors)
        return cpu_steps(self.settings, holds, seen, guests_may_start=self.kernel.guests_may_start())

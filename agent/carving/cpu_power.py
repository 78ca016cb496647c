"""Takes the steps that bring dedicated CPUs up for claims, and down where no instance has them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.carving.cpu_file import read_cpu_file
from agent.carving.cpu_kernel import CpuKernel
from agent.carving.cpus import CpuHolds, CpuStep, cpu_steps, managed_cpus, state_of_down
from agent.driver import HostSettings

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
                if step in tried or (self._is_down(step) and self.kernel.guests_may_start()):
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

    def _is_down(self, step: CpuStep) -> bool:
        return step.state == state_of_down(self.settings)

    def _steps(self, holds: CpuHolds | None) -> tuple[CpuStep, ...]:
        governors = self.settings.cpu_power_management_strategy == "governor"
        seen = self.kernel.states(sorted(managed_cpus(self.settings)), governors=governors)
        return cpu_steps(self.settings, holds, seen, guests_may_start=self.kernel.guests_may_start())

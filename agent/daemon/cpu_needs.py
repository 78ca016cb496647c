"""Keeps the file of dedicated CPUs: which instance has which, see `agent.carving.cpus`."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from agent.backoff import Backoff
from agent.carving.cpu_power import CpuKernel
from agent.carving.cpus import CpuHold, CpuHolds, awaited_cpus, cpu_holds, managed_cpus, state_of_up
from agent.carving.files import read_cpu_file, write_cpu_file
from agent.claims.rows import Row
from agent.daemon.kept_needs import KeptNeeds
from agent.driver import Guest, HostSettings


class CpuNeeds:
    """Writes the file in `folder` where it does not say who has which CPU now. Any thread may call.

    The file's replacement starts what brings the awaited CPUs up. `guests` are None while they are not
    known. Nothing is written while [compute] cpu_power_management is off.
    """

    def __init__(
        self,
        folder: Path,
        settings: Callable[[], HostSettings],
        rows: Callable[[], Iterable[Row]],
        guests: Callable[[], Iterable[Guest] | None],
        kernel: CpuKernel | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._guests = guests
        self._kernel = kernel or CpuKernel()
        self._file = KeptNeeds(partial(read_cpu_file, folder), partial(write_cpu_file, folder), backoff)

    def write(self) -> None:
        """Write what is so now, see `KeptNeeds.keep`."""
        settings = self._settings()
        if managed_cpus(settings):
            self._file.keep(partial(self._look, settings))

    def _look(
        self, settings: HostSettings, former: CpuHolds | None
    ) -> tuple[dict[str, CpuHold], Callable[[], bool]] | None:
        if self._guests() is None:
            return None
        holds = cpu_holds(self._rows(), former or {})
        return holds, partial(self._are_up, settings, holds)

    def _are_up(self, settings: HostSettings, holds: CpuHolds) -> bool:
        awaited = awaited_cpus(holds) & managed_cpus(settings)
        governors = settings.cpu_power_management_strategy == "governor"
        states = self._kernel.states(awaited, governors=governors).values()
        return all(state == state_of_up(settings) for state in states)

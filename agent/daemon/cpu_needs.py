"""Keeps the file of dedicated CPUs: which instance has which, see `agent.carving.cpus`."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from agent import log
from agent.backoff import Backoff
from agent.carving.cpu_file import read_cpu_file, write_cpu_file
from agent.carving.cpu_kernel import CpuKernel
from agent.carving.cpus import CpuHold, CpuHolds, awaited_cpus, cpu_holds, managed_cpus, state_of_up
from agent.claims.rows import Row
from agent.driver import Guest, HostSettings
from agent.errors import StateError

LOG = log.get(__name__)


class CpuNeeds:
    """Writes the file in `folder` where it does not say who has which CPU now. Any thread may call.

    The file's replacement starts what brings CPUs up; so while one that is awaited is not up, the same file
    is written again, less and less often. `guests` are None while they are not known. Nothing is written
    while [compute] cpu_power_management is off.
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
        self._folder = folder
        self._settings = settings
        self._rows = rows
        self._guests = guests
        self._kernel = kernel or CpuKernel()
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._written: dict[str, CpuHold] | None = None
        self._warned = ""

    def write(self) -> None:
        """Write what is so now, if it is known and differs.

        A file that cannot be written is told in the log once, and tried again at the next call.
        """
        with self._lock:
            settings = self._settings()
            if not managed_cpus(settings) or self._guests() is None:
                return
            try:
                if self._written is None:
                    self._written = read_cpu_file(self._folder)
            except StateError as error:
                self._warn(error.message)
            holds = cpu_holds(self._rows(), self._written or {})
            if holds == self._written and not self._is_to_ask_again(settings, holds):
                return
            try:
                write_cpu_file(self._folder, holds)
            except StateError as error:
                self._warn(error.message)
            else:
                self._written, self._warned = holds, ""

    def _is_to_ask_again(self, settings: HostSettings, holds: CpuHolds) -> bool:
        awaited = awaited_cpus(holds) & managed_cpus(settings)
        governors = settings.cpu_power_management_strategy == "governor"
        states = self._kernel.states(awaited, governors=governors).values()
        if all(state == state_of_up(settings) for state in states):
            self._backoff.succeeded()
            return False
        if self._backoff.left_s():
            return False
        self._backoff.failed(busy=True)
        return True

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)

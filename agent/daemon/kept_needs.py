"""Keeps the files of what the agent needs from processes of root, which systemd starts at each replacement.

The plan file says what a boot must make again for claims and domains, see `agent.carving`; the file of
dedicated CPUs says which instance has which, see `agent.carving.cpus`.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from agent import log
from agent.backoff import Backoff
from agent.carving.carving import NeededUnit, needed_units
from agent.carving.cpu_power import CpuKernel
from agent.carving.cpus import CpuHold, CpuHolds, awaited_cpus, cpu_holds, managed_cpus, state_of_up
from agent.carving.files import read_cpu_file, read_plan_file, write_cpu_file, write_plan_file
from agent.claims.claim import Claim
from agent.claims.rows import Row
from agent.driver import CarvedUnit, Guest, HostSettings
from agent.errors import DriverError, StateError

LOG = log.get(__name__)

T = TypeVar("T")


class KeptNeeds(Generic[T]):
    """Replaces the file where other things are needed than it says. Any thread may call.

    While what it asks for is not there, the same file is written again, less and less often. `read` and
    `write` are those of the file.
    """

    def __init__(
        self, read: Callable[[], T | None], write: Callable[[T], None], backoff: Backoff | None = None
    ) -> None:
        self._read = read
        self._write = write
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._written: T | None = None
        self._warned = ""

    def keep(self, look: Callable[[T | None], tuple[T, Callable[[], bool]] | None]) -> None:
        """Write what `look` finds, if it is known and differs from what was written last.

        `look` is called with that, None where the file is missing or cannot be read; it returns what is
        needed now, and what tells whether that is there already; None where it is not known. A file that
        cannot be written is told in the log once, and tried again at the next call.
        """
        with self._lock:
            former = self._former()
            found = look(former)
            if found is None:
                return
            needs, is_there = found
            if needs == former and not self._is_to_ask_again(is_there):
                return
            try:
                self._write(needs)
            except StateError as error:
                self._warn(error.message)
            else:
                self._written, self._warned = needs, ""

    def _former(self) -> T | None:
        if self._written is None:
            try:
                self._written = self._read()
            except StateError as error:
                self._warn(error.message)
        return self._written

    def _is_to_ask_again(self, is_there: Callable[[], bool]) -> bool:
        if is_there():
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


class BootNeeds:
    """Writes the file in `folder` where it does not say what is needed now. Any thread may call.

    The file's replacement starts what makes vGPUs at places of their cards. `guests` are None while they are
    not known; `carved` is `Driver.carved_units`.
    """

    def __init__(
        self,
        folder: Path,
        claims: Callable[[], Iterable[Claim]],
        guests: Callable[[], Iterable[Guest] | None],
        carved: Callable[[], Iterable[CarvedUnit]],
        backoff: Backoff | None = None,
    ) -> None:
        self._claims = claims
        self._guests = guests
        self._carved = carved
        self._file = KeptNeeds(partial(read_plan_file, folder), partial(write_plan_file, folder), backoff)

    def write(self) -> None:
        """Write what is needed now, see `KeptNeeds.keep`: the guests that run need nothing of it."""
        self._file.keep(self._look)

    def _look(
        self, former: tuple[NeededUnit, ...] | None
    ) -> tuple[tuple[NeededUnit, ...], Callable[[], bool]] | None:
        guests = self._guests()
        if guests is None:
            return None
        try:
            carved = tuple(self._carved())
        except DriverError as error:  # the passes report a driver that does not answer
            LOG.debug("What a boot needs is not known: %s", error.message)
            return None
        needs = needed_units(self._claims(), guests, carved, former or ())
        return needs, lambda: {need.unit for need in needs if need.unit.placement is not None} <= {*carved}


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

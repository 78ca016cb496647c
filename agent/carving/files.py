"""The files in the state directory by which the agent tells processes of root what claims need.

systemd starts such a process at each replacement of a file. The plan file says what a boot must make again
for claims and domains, see `agent.carving`; the file of dedicated CPUs says which instance has which, see
`agent.carving.cpus`. The agent keeps both (`BootNeeds`, `CpuNeeds`). A process of root checks both by
itself, and follows settings only if none but root and their owner can write them.
"""

import json
import os
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from agent import log
from agent.backoff import Backoff
from agent.carving import cpus
from agent.carving.carving import NeededUnit, needed_units, needs_to_json, read_needs
from agent.carving.kernel import CpuKernel
from agent.claims.claim import Claim
from agent.claims.rows import Row
from agent.device_names import NO_MAC, VLAN
from agent.driver import CarvedUnit, Guest, HostSettings, UsedUnit
from agent.durable.files import write_atomically
from agent.errors import DriverError, StateError, UsageError

LOG = log.get(__name__)
T = TypeVar("T")

SIZE_MAX = 2**20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REMEDY = "The agent replaces it: start the agent if it does not run."


def check_owners(paths: Iterable[Path]) -> None:
    """Raises StateError where another user can write one of the files, or can put another in its place."""
    for path in paths:
        for place in (path, path.parent):
            try:
                found = place.stat()
            except OSError as error:
                raise StateError(f"{place} cannot be read: {error.strerror}.") from error
            # In a sticky folder, as /tmp is, the kernel lets each user replace only files of their own.
            is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            if found.st_uid not in (0, os.geteuid()) or (found.st_mode & _OTHERS_WRITE and not is_sticky):
                raise StateError(
                    f"{place} can be written by others than root, and says what is done to devices as root: "
                    f"run `chown root {place}; chmod go-w {place}`, or move [devices] and [mdev_...] into a "
                    "file of root, such as /etc/plimsoll/conf.d/devices.conf."
                )


def write_kept(path: Path, content: Any, loss: str) -> None:
    """Replace the file, durably. Raises StateError, with `loss`: a clause on what does not happen then."""
    try:
        write_atomically(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}; {loss}.") from error


def read_kept(path: Path, read: Callable[[object], T]) -> T | None:
    """What `read` makes of the file's JSON; None where there is no file.

    Raises StateError where the file is not what the agent writes: another user's, writable for others, a
    link, too large, no JSON, or refused by `read` with UsageError. The error shows nothing of the file's
    content but what is wrong in it.
    """
    try:
        folder = path.parent.stat()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > SIZE_MAX:
                raise UsageError(f"it is no file of at most {SIZE_MAX} bytes.")
            if found.st_uid not in (0, folder.st_uid) or (found.st_mode | folder.st_mode) & _OTHERS_WRITE:
                raise UsageError("others than the owner of the directory may write it.")
            text = file.read(SIZE_MAX)
        return read(json.loads(text))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}; run this as root.") from error
    except UsageError as error:
        raise StateError(f"{path}: {error.message} {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path} is not JSON. {_REMEDY}") from error


PLAN_NAME = "carving.json"
_PLAN_LOSS = "after a reboot the devices of new guests are not made again"


def write_plan_file(folder: Path, needs: Iterable[NeededUnit]) -> None:
    """Replace the file, durably. Raises StateError."""
    write_kept(folder / PLAN_NAME, needs_to_json(needs), _PLAN_LOSS)


def read_plan_file(folder: Path) -> tuple[NeededUnit, ...]:
    """What claims and domains need; nothing where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / PLAN_NAME, read_needs) or ()


def with_noted_ports(guests: Iterable[Guest], folder: Path) -> tuple[Guest, ...]:
    """The guests, each with what is noted for its functions that have no port on their card any more.

    A `<hostdev>` does not tell its own, so the guest asks for the one that its function had while the same
    guest had it. A MAC address without a VLAN may be one that the guest chose: drivers such as i40e show that
    while the guest's driver runs. Notes that cannot be read count as none: `BootNeeds` tells of them.
    """
    noted: dict[str, NeededUnit] = {}
    with suppress(StateError):
        noted = {need.unit.unit: need for need in read_plan_file(folder) if VLAN in need.unit.port}

    def asking(guest: Guest, unit: UsedUnit) -> UsedUnit:
        need = noted.get(unit.unit)
        is_lost = (
            need is not None and unit.port == NO_MAC and not unit.asked_port and guest.uuid in need.holder
        )
        return replace(unit, asked_port=need.unit.port) if need and is_lost else unit

    return tuple(
        replace(guest, units=tuple(asking(guest, unit) for unit in guest.units)) if noted else guest
        for guest in guests
    )


CPUS_NAME = "cpus.json"
_CPUS_LOSS = "the CPUs of new claims do not come up before their guests start"


def write_cpu_file(folder: Path, holds: cpus.CpuHolds) -> None:
    """Replace the file, durably; that starts the process of root. Raises StateError."""
    write_kept(folder / CPUS_NAME, cpus.holds_to_json(holds), _CPUS_LOSS)


def read_cpu_file(folder: Path) -> dict[str, cpus.CpuHold] | None:
    """What the agent wrote; None where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / CPUS_NAME, cpus.read_holds)


class KeptNeeds(Generic[T]):
    """Replaces the file where other things are needed than it says. Any thread may call.

    While what it asks for is not there, or the file is not what was written, the same is written again, less
    and less often. `read` and `write` are those of the file.
    """

    def __init__(
        self, read: Callable[[], T | None], write: Callable[[T], None], backoff: Backoff | None = None
    ) -> None:
        self._read = read
        self._write = write
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._known: T | None = None
        self._warned = ""

    def keep(self, look: Callable[[T | None], tuple[T, Callable[[], bool]] | None]) -> None:
        """Write what `look` finds, if it is known and differs from what the file says.

        `look` is called with that; with what was written last where the file is missing or spoilt, None where
        nothing was. It returns what is needed now, and what tells whether that is there already; None where
        it is not known. A file that cannot be written is told in the log once, and tried again at the next
        call.
        """
        with self._lock:
            said: T | None = None
            try:
                said = self._read()
            except StateError as error:
                self._warn(error.message)
            found = look(said or self._known)
            if found is None:
                return
            needs, is_there = found
            if needs in (said, self._known):
                self._known = needs
                if needs == said and is_there():
                    self._backoff.succeeded()
                    return
                if self._backoff.left_s():
                    return
                self._backoff.failed(busy=True)
            try:
                self._write(needs)
            except StateError as error:
                self._warn(error.message)
            else:
                self._known, self._warned = needs, ""

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
        if cpus.managed_cpus(settings):
            self._file.keep(partial(self._look, settings))

    def _look(
        self, settings: HostSettings, former: cpus.CpuHolds | None
    ) -> tuple[dict[str, cpus.CpuHold], Callable[[], bool]] | None:
        if self._guests() is None:
            return None
        holds = cpus.cpu_holds(self._rows(), former or {})
        return holds, partial(self._are_up, settings, holds)

    def _are_up(self, settings: HostSettings, holds: cpus.CpuHolds) -> bool:
        awaited = cpus.awaited_cpus(holds) & cpus.managed_cpus(settings)
        governors = settings.cpu_power_management_strategy == "governor"
        states = self._kernel.states(awaited, governors=governors).values()
        return all(state == cpus.state_of_up(settings) for state in states)

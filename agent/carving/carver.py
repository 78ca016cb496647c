"""What processes of root do: the carver carves cards, and `CpuPower` brings dedicated CPUs up for claims,
and down where no instance has them.

The carver compares what the kernel shows with the carving, and takes the steps between them in turn. Its
journal has the steps that the run under way took, so that the next one knows what was cut off. It lies
below /run: a boot takes away what it tells of. Each step is on it before it is taken.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from agent.carving.carving import (
    NeededUnit,
    Plan,
    Step,
    join,
    on_mixed_cards,
    plan,
    read_step,
    undo,
)
from agent.carving.cpus import CpuHolds, CpuStep, cpu_steps, managed_cpus, state_of_down
from agent.carving.files import read_cpu_file, read_kept
from agent.carving.kernel import CpuKernel, Kernel
from agent.codec import decode, encode
from agent.driver import DeclaredCarving, HostSettings, RootSight
from agent.durable.files import make_directory, write_atomically
from agent.errors import StateError, UsageError
from agent.json_checks import read_list

FILE = Path("run/plimsoll-devices/journal.json")
"""Below the host's root."""
SIZE_MAX = 2**22
LOCK = "lock"
LOCK_MODE = 0o600
TOLD_MODE = 0o755


class CarvingJournal:
    """The file at `path`. Every method raises StateError where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the run under way, and let no other one begin meanwhile."""
        path = self._path.with_name(LOCK)
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LOCK_MODE)
        except OSError as error:
            raise StateError(f"{path} cannot be opened: {error.strerror}; run it as root.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def unfinished(self) -> tuple[Step, ...]:
        """The steps of the run that did not end; none where the last one did."""
        try:
            with self._path.open(encoding="utf-8") as file:
                data = read_list(json.loads(file.read(SIZE_MAX)), "journal")
            return tuple(map(read_step, data))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StateError(f"{self._path} cannot be read: {error.strerror}; run this as root.") from error
        except (ValueError, UsageError) as error:
            raise StateError(f"{self._path} is no journal of steps: {error}; remove it.") from error

    def write(self, steps: Iterable[Step]) -> None:
        """The steps so far of the run under way, with the one that is taken next."""
        try:
            make_directory(self._path.parent)
            write_atomically(self._path, json.dumps([step.to_json() for step in steps]) + "\n")
        except OSError as error:
            raise StateError(f"{self._path} cannot be written: {error.strerror}; run it as root.") from error

    def end(self) -> None:
        """The run under way has ended."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StateError(f"{self._path} cannot be removed: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class Carved:
    """What a run did: the steps that it took, sentences on those that failed, and on refusals."""

    steps: tuple[Step, ...] = ()
    failures: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Carver:
    """Compares and carves. `needed` are the units of claims and domains.

    `mixed_only`: only the vGPUs of cards in mixed-size mode; a run that was cut off is finished as a whole.
    """

    kernel: Kernel
    journal: CarvingJournal
    declared: DeclaredCarving
    needed: tuple[NeededUnit, ...] = ()
    mixed_only: bool = False
    _named: frozenset[str] = field(init=False)
    """The addresses that the carving is about."""

    def __post_init__(self) -> None:
        declared = self.declared
        named = (
            *declared.vfs,
            *declared.drivers,
            *declared.vf_drivers,
            *declared.vgpu_types,
            *declared.mixed,
            *declared.mig,
            *(card for cards in declared.quotas.values() for card in cards),
            *(address for need in self.needed for address in (need.unit.card, need.unit.parent)),
        )
        object.__setattr__(self, "_named", frozenset(named))

    def look(self) -> Plan:
        """The steps that are to be taken now, and sentences on what is refused. Raises StateError."""
        return self._look(self.journal.unfinished())

    def carve(self, on_step: Callable[[Step], None] = lambda step: None) -> Carved:
        """Take the steps. A function at which one fails is left as it is, and the others go on.

        Without its card's steps a virtual function gets none. `on_step` is called before each step. Raises
        StateError where the journal cannot be written, and takes no step then.
        """
        unfinished = self.journal.unfinished()
        taken: dict[Step, None] = {}
        failed: dict[str, str] = {}
        while True:
            found = self._look(unfinished)
            left = (
                each
                for each in found.steps
                if failed.keys().isdisjoint((each.card, each.function, each.unit, each.subject))
            )
            step = next(left, None)
            if step is None:
                break
            if step in taken:
                failed[step.subject] = f"{step.function}: the kernel forgot this: {step.text}."
                continue
            taken[step] = None
            on_step(step)
            self.journal.write((*unfinished, *taken))
            try:
                self.kernel.do(step)
            except OSError as error:
                failed[step.subject] = f"{step.function}: cannot {step.text}: {error.strerror or error}."
        self.journal.end()
        return Carved(tuple(taken), tuple(failed.values()), found.refusals)

    def tell(self, path: Path) -> tuple[str, ...]:
        """Write what only root sees of devices into the file, for the agent; sentences on what fails.

        With `mixed_only`, as systemd runs it again and again: the modes of cards that no guest has alone.
        """
        former, is_lost = RootSight(), False
        try:
            former = read_kept(path, partial(decode, RootSight)) or former
        except StateError:
            is_lost = True
        if self.mixed_only:
            sight = replace(former, cc_modes=self.kernel.cc_modes(former.cc_modes, of_guests=False))
            if sight == former:
                return ()
        else:
            sight = self.kernel.sight(former, links=self.declared.links)
        try:
            path.parent.mkdir(mode=TOLD_MODE, parents=True, exist_ok=True)
            write_atomically(path, json.dumps(encode(RootSight, sight), indent=1) + "\n", 0o644)
        except OSError as error:
            return (f"{path} cannot be written: {error.strerror}; the agent does not know what it says.",)
        failures = []
        if is_lost and (unread := self.kernel.cc_cards() - sight.cc_modes.keys()):
            failures.append(
                f"the modes of confidential computing of {', '.join(sorted(unread))} are forgotten: they "
                f"cannot be read now, and {path} could not be used."
            )
        if sight.problem and not self.mixed_only:
            failures.append(f"the groups of GPUs stay as they were known: {sight.problem}.")
        return tuple(failures)

    def _look(self, unfinished: Iterable[Step]) -> Plan:
        unfinished = tuple(unfinished)
        mig = () if self.mixed_only and not unfinished else self.declared.mig
        seen = self.kernel.seen({*self._named, *(step.function for step in unfinished)}, mig)
        declared, needed = self.declared, self.needed
        if self.mixed_only and not unfinished:
            declared, needed = on_mixed_cards(declared, needed, seen)
        carving, problems = join(declared, needed, seen)
        found = plan(carving, seen)
        return Plan((*undo(unfinished, carving, seen), *found.steps), (*problems, *found.refusals))


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

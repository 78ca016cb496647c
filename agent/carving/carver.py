"""The carver: compares what the kernel shows with the carving, and takes the steps between them in turn."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from agent.carving.carving import NeededUnit, join, on_mixed_cards
from agent.carving.journal import CarvingJournal
from agent.carving.kernel import Kernel
from agent.carving.plan import Plan, plan
from agent.carving.steps import Step, StepKind
from agent.carving.undo import undo
from agent.driver import DeclaredCarving


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", frozenset(_named(self.declared, self.needed)))

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
            left = (each for each in found.steps if not {each.card, each.function, each.unit} & failed.keys())
            step = next(left, None)
            if step is None:
                break
            subject = step.unit if step.kind is StepKind.CREATE_MDEV else step.function
            if step in taken:
                failed[subject] = f"{step.function}: the kernel forgot this: {step.text}."
                continue
            taken[step] = None
            on_step(step)
            self.journal.write((*unfinished, *taken))
            try:
                self.kernel.do(step)
            except OSError as error:
                failed[subject] = f"{step.function}: cannot {step.text}: {error.strerror or error}."
        self.journal.end()
        return Carved(tuple(taken), tuple(failed.values()), found.refusals)

    def _look(self, unfinished: Iterable[Step]) -> Plan:
        unfinished = tuple(unfinished)
        seen = self.kernel.seen({*self._named, *(step.function for step in unfinished)})
        declared, needed = self.declared, self.needed
        if self.mixed_only and not unfinished:
            declared, needed = on_mixed_cards(declared, needed, seen)
        carving, problems = join(declared, needed, seen)
        found = plan(carving, seen)
        return Plan((*undo(unfinished, carving, seen), *found.steps), (*problems, *found.refusals))


def _named(declared: DeclaredCarving, needed: Iterable[NeededUnit]) -> Iterator[str]:
    """The addresses that the carving is about."""
    for names in (
        declared.vfs,
        declared.drivers,
        declared.vf_drivers,
        declared.vgpu_types,
        declared.mixed,
    ):
        yield from names
    for need in needed:
        yield from (need.unit.card, need.unit.parent)

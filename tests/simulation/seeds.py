"""Histories drawn by a seed, how one is told, and how one that breaks a law is made short."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from simulation.network import Fate
from simulation.oracle import Violation
from simulation.story import Step, Story
from simulation.tasks import Stuck

CONSUMERS = ("web1", "web2", "web3", "web4")
FATES = tuple(fate for fate in Fate if fate is not Fate.ANSWERED)
KINDS = ("cold_migrate", "resize", "evacuate", "live_migrate")
SHAPES: tuple[dict[str, int], ...] = (
    {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1},
    {"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 2},
    {"VCPU": 2, "MEMORY_MB": 20000},
    {"VCPU": 1, "PGPU": 1},
    {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40},
    {"PCPU": 2, "MEMORY_MB": 1024},
)
GROWTH: tuple[dict[str, int], ...] = (
    {"SRIOV_NET_VF": 1},
    {"MEMORY_MB": 8000},
    {"PGPU": 1},
    {"VCPU": 6},
)


@dataclass(frozen=True)
class History:
    """What a seed draws: the world, how restless it is, and what happens."""

    seed: int
    steps: tuple[Step, ...]
    hosts: str = "ab"
    servers: int = 1
    restless: float = 0.0
    stall: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"hosts {', '.join(self.hosts)}; {self.servers} of Placement's processes; schedule {self.seed}, "
            f"restless {self.restless:g}, stalls {self.stall:g}"
        ]
        return "\n".join(
            [*lines, *(f"{number:3}. {step}" for number, step in enumerate(self.steps, start=1))]
        )


class Narrator:
    """Draws the steps of one history. Each has a few kinds of steps and faults only, so that these meet."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"history {seed}")
        self.seed = seed
        dice = self.dice
        self.hosts = "ab" if dice.random() < 0.8 else "abc" if dice.random() < 0.8 else "abcde"
        self.servers = dice.choice((1, 2))
        self.shapes = dice.sample(SHAPES, dice.randint(1, 3))
        self.consumers = CONSUMERS[: dice.randint(2, len(CONSUMERS))]
        self.fates = dice.sample(FATES, dice.randint(1, 3))
        self.migrations = 0
        self.moving: list[str] = []
        self.weights: dict[str, float] = {
            verb: weight * (0.0 if dice.random() < 0.4 else 1.0) for verb, weight in RARER.items()
        }
        self.weights |= COMMON
        self.fast = dice.random() < 0.5

    def draw(self) -> History:
        dice = self.dice
        restless = dice.choice((0.0, 0.05, 0.3, 1.0))
        stall = dice.choice((0.0, 0.0, 0.002, 0.01))
        steps: list[Step] = []
        verbs, weights = list(self.weights), list(self.weights.values())
        for _ in range(dice.randint(5, 24)):
            verb = dice.choices(verbs, weights)[0]
            steps += getattr(self, f"_{verb}")()
            steps += self._pause()
        return History(self.seed, tuple(steps), self.hosts, self.servers, restless, stall)

    def _pause(self) -> list[Step]:
        choice = self.dice.random()
        if choice < 0.35:
            return [Step("answers_come")]
        if choice < 0.65:
            return [Step("lets", (self.dice.randint(1, 40),))]
        if choice < 0.8 or self.fast:
            return [Step("waits", (self.dice.choice((1.0, 5.0, 20.0)),))]
        return [Step("waits", (self.dice.choice((60.0, 130.0, 300.0)),))]

    def _host(self) -> str:
        return self.dice.choice(self.hosts[:2]) if self.dice.random() < 0.8 else self.dice.choice(self.hosts)

    def _amounts(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.dice.choice(self.shapes).items())

    def _consumer(self) -> str:
        return self.dice.choice(self.consumers)

    def _claims(self) -> list[Step]:
        return [Step("claims", (self._host(), self._consumer()), self._amounts())]

    def _releases(self) -> list[Step]:
        return [Step("releases", (self._host(), self._consumer()))]

    def _guest_starts(self) -> list[Step]:
        return [Step("guest_starts", (self._host(), self._consumer()))]

    def _guest_grows(self) -> list[Step]:
        amounts = tuple(self.dice.choice(GROWTH).items())
        return [Step("guest_grows", (self._host(), self._consumer()), amounts)]

    def _guest_loses_a_device(self) -> list[Step]:
        return [Step("guest_loses_a_device", (self._host(), self._consumer()))]

    def _guest_stops(self) -> list[Step]:
        return [Step("guest_stops", (self._host(), self._consumer()))]

    def _guest_goes(self) -> list[Step]:
        return [Step("guest_goes", (self._host(), self._consumer()))]

    def _stranger_starts(self) -> list[Step]:
        return [
            Step("stranger_starts", (self._host(), f"stranger{self.dice.randint(1, 2)}"), self._amounts())
        ]

    def _schedules(self) -> list[Step]:
        consumer = self.dice.choice((*self.consumers, "scheduled1", "scheduled2"))
        amounts = self._amounts()
        host = self._host()
        steps = [Step("schedules", (host, consumer), amounts)]
        if self.dice.random() < 0.6:
            steps += [*self._pause(), Step("claims", (host, consumer), amounts)]
        return steps

    def _deletes_allocation(self) -> list[Step]:
        return [Step("deletes_allocation", (self._consumer(),))]

    def _moves(self) -> list[Step]:
        """A move in one piece: begun, the guest moves, ended; what lies between may be anything."""
        self.migrations += 1
        migration, consumer = f"move{self.migrations}", self._consumer()
        source, target = self._host(), self._host()
        kind = "resize" if source == target else self.dice.choice(KINDS)
        self.moving.append(migration)
        return [Step("begins_move", (target, consumer, migration, kind), self._amounts())]

    def _ends_move(self) -> list[Step]:
        if not self.moving:
            return []
        migration = self.dice.choice(self.moving)
        return [Step(self.dice.choice(("confirms", "reverts")), (self._host(), migration))]

    def _guest_moves(self) -> list[Step]:
        source, target = self.dice.sample(self.hosts, 2)
        return [Step("guest_moves", (source, self._consumer(), target))]

    def _dies(self) -> list[Step]:
        host = self._host()
        steps = [Step("dies", (host,))]
        if self.dice.random() < 0.6:
            steps = [Step("will_die", (host, self.dice.randint(1, 60)))]
        return [*steps, *self._pause(), *self._lose_disk(host), Step("starts", (host,))]

    def _lose_disk(self, host: str) -> list[Step]:
        return [Step("loses_disk", (host,))] if self.dice.random() < 0.1 else []

    def _starts(self) -> list[Step]:
        return [Step("starts", (self._host(),))]

    def _reshapes(self) -> list[Step]:
        return [Step("reshapes", (self._host(), self.dice.choice(("flat", "nested"))))]

    def _functions(self) -> list[Step]:
        return [Step(self.dice.choice(("loses_functions", "regains_functions")), (self._host(),))]

    def _next_write(self) -> list[Step]:
        later_s = self.dice.choice((0.0, 1.0, 20.0, 50.0, 100.0, 250.0))
        return [Step("next_write", (self._host(), self.dice.choice(self.fates), later_s))]

    def _server(self) -> list[Step]:
        return [Step(self.dice.choice(("pauses", "resumes")), (self.dice.randint(1, self.servers),))]

    def _wire(self) -> list[Step]:
        return [Step(self.dice.choice(("is_cut", "is_joined")), (self._host(),))]

    def _journal(self) -> list[Step]:
        if self.dice.random() < 0.5:
            return [Step("journal_fails", (self._host(),))]
        return [Step("journal_stalls", (self._host(), self.dice.choice((1.0, 30.0, 70.0))))]

    def _audits(self) -> list[Step]:
        return [Step(self.dice.choice(("audits", "looks")), (self._host(),))]


COMMON = {"claims": 6.0, "releases": 3.0, "guest_starts": 3.0, "guest_goes": 1.5}
RARER = {
    "guest_grows": 1.0,
    "guest_loses_a_device": 0.7,
    "guest_stops": 0.7,
    "stranger_starts": 1.0,
    "schedules": 1.5,
    "deletes_allocation": 0.4,
    "moves": 3.0,
    "ends_move": 3.0,
    "guest_moves": 2.0,
    "dies": 1.5,
    "reshapes": 1.5,
    "functions": 0.5,
    "next_write": 4.0,
    "server": 1.0,
    "wire": 0.7,
    "journal": 1.0,
    "audits": 1.0,
}


def draw(seed: int) -> History:
    """The history of this seed."""
    return Narrator(seed).draw()


@dataclass
class Outcome:
    """How a history ended: the law that it broke, the sentence, and all that happened."""

    history: History
    law: str = ""
    sentence: str = ""
    told: tuple[str, ...] = ()

    @property
    def report(self) -> str:
        return "\n".join(
            [f"seed {self.history.seed}: {self.sentence}", str(self.history), "", *self.told[-120:]]
        )


def tell(history: History) -> Outcome:
    """Tell the history, and let it come to rest."""
    outcome = Outcome(history)
    story = Story(
        history.hosts,
        seed=history.seed,
        servers=history.servers,
        restless=history.restless,
        stall=history.stall,
    )
    try:
        with story, story.meanwhile():
            for step in history.steps:
                story.tell(step)
            story.comes_to_rest()
    except Violation as violation:
        outcome.law, outcome.sentence = violation.law, str(violation)
    except Stuck as stuck:
        outcome.law, outcome.sentence = "all comes to rest", str(stuck)
    outcome.told = tuple(story.told)
    return outcome


def shorten(outcome: Outcome, *, attempts: int = 400) -> Outcome:
    """A shorter history that breaks the same law: fewer steps, a calmer schedule, fewer hosts."""
    return _Shortening(outcome, attempts).run()


class _Shortening:
    def __init__(self, outcome: Outcome, attempts: int) -> None:
        self._best = outcome
        self._left = attempts

    def run(self) -> Outcome:
        for change in ({"stall": 0.0}, {"restless": 0.0, "stall": 0.0}, {"servers": 1}):
            self._try(replace(self._best.history, **change))
        size = max(1, len(self._steps) // 2)
        while self._left > 0 and (self._drop(size) or size > 1):
            size = max(1, size // 2)
        self._hurry()
        self._drop_hosts()
        self._try(replace(self._best.history, restless=0.0))
        return self._best

    @property
    def _steps(self) -> tuple[Step, ...]:
        return self._best.history.steps

    def _try(self, history: History) -> bool:
        self._left -= 1
        if self._left < 0 or history == self._best.history:
            return False
        found = tell(history)
        if found.law != self._best.law:
            return False
        self._best = found
        return True

    def _drop(self, size: int) -> bool:
        """Leave out runs of so many steps; whether one could be left out."""
        at, dropped = 0, False
        while at < len(self._steps) and self._left > 0:
            if self._try(replace(self._best.history, steps=self._steps[:at] + self._steps[at + size :])):
                dropped = True
            else:
                at += size
        return dropped

    def _hurry(self) -> None:
        """Wait for answers in place of anything else."""
        for at, step in enumerate(self._steps):
            if step.verb in ("lets", "waits"):
                steps = (*self._steps[:at], Step("answers_come"), *self._steps[at + 1 :])
                self._try(replace(self._best.history, steps=steps))

    def _drop_hosts(self) -> None:
        for hosts in ("ab", "a"):
            others = set(self._best.history.hosts) - set(hosts)
            if others and not any(others & set(map(str, step.args)) for step in self._steps):
                self._try(replace(self._best.history, hosts=hosts))

"""Histories drawn by a seed, how one is told, and how one that breaks a law is made short."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from simulation.journal import RowMeets
from simulation.network import Fate
from simulation.oracle import Violation
from simulation.story import Step, Story
from simulation.tasks import Stuck

Amounts = tuple[tuple[str, int], ...]
CONSUMERS = ("web1", "web2", "web3", "web4")
FATES = tuple(fate for fate in Fate if fate not in (Fate.ANSWERED, Fate.TWICE))
"""What a history draws. An answered request that is done twice is a story of its own (test_stories.py)."""
DONE = (Fate.RESET_AFTER, Fate.PROXY_AFTER, Fate.LATE)
"""What becomes of a write that Placement executes, without the agent's knowledge."""
NOT_DONE = (Fate.LOST, Fate.RESET_BEFORE, Fate.LATE, Fate.PROXY_LATE)
"""What becomes of a write that Placement does not execute, or not yet, as far as the agent knows."""
KINDS = ("cold_migrate", "resize", "evacuate", "live_migrate")
SHAPES: tuple[dict[str, int], ...] = (
    {"VCPU": 1, "MEMORY_MB": 1024, "SRIOV_NET_VF": 1},
    {"VCPU": 2, "MEMORY_MB": 2048, "SRIOV_NET_VF": 2},
    {"VCPU": 2, "MEMORY_MB": 20000},
    {"VCPU": 1, "PGPU": 1},
    {"VCPU": 8, "MEMORY_MB": 9000, "DISK_GB": 40},
    {"PCPU": 2, "MEMORY_MB": 1024},
)
WITH_DISK = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 40}
POOLED = 0.2
"""So many of the histories have hosts that share a pool."""
INTERRUPTED = 0.1
"""So many of the histories have claims that are interrupted by a kill, and written late."""
CLOCKED = 0.15
"""So many of the histories have wall clocks that are set."""
SUSPENDED = 0.1
"""So many of the histories have hosts that are suspended."""
RENEWED = 0.1
"""So many of the histories have commits that fail in the midst of an operation, which is asked for again; as
many have moves that are ended right after an interrupted begin, as many have claims that are released while a
write for them is in doubt that cannot be written again, and as many have reshapes after a unit got free."""
FOREIGN = 0.15
"""So many of the histories have moves of a control plane, and as many lose allocations to others."""
UNHELD = 0.12
"""So many of the histories have claims that others took the allocation of, and then other cells."""
HEALED = 0.08
"""So many of the histories have repairs whose answers are lost."""
SHARED = 0.06
"""So many of the histories have guests that get devices of others."""
CLONED = 0.08
"""So many of the histories have a host whose disk is copied into another machine."""
SHARED_JOURNAL = 0.2
"""So many of the histories have two servers that share a journal."""
SERVERS_FAIL, SERVERS_FAIL_SHARED = 0.15, 0.7
"""In so many of the histories servers of Placement are killed, or lose their role."""
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
    pooled: bool = False
    shared: bool = False
    bound: bool = True

    def __str__(self) -> str:
        disks = " with a shared pool" if self.pooled else ""
        servers = "servers that share a journal" if self.shared else "of Placement's processes"
        lines = [
            f"hosts {', '.join(self.hosts)}{disks}; {self.servers} {servers}; "
            f"tokens {'bound to hosts' if self.bound else 'for all hosts'}; "
            f"schedule {self.seed}, restless {self.restless:g}, stalls {self.stall:g}"
        ]
        return "\n".join(
            [*lines, *(f"{number:3}. {step}" for number, step in enumerate(self.steps, start=1))]
        )


class Narrator:
    """Draws one history: a few plots, each about one consumer, mixed with each other and with mishaps.

    Each history has a few kinds of plots and mishaps only, so that these meet.
    """

    def __init__(self, seed: int) -> None:
        self.dice = Random(f"history {seed}")
        self.seed = seed
        dice = self.dice
        self.hosts = "ab" if dice.random() < 0.8 else "abc" if dice.random() < 0.8 else "abcde"
        self.servers = dice.choice((1, 2))
        self.shapes = dice.sample(SHAPES, dice.randint(1, 3))
        self.fates = dice.sample(FATES, dice.randint(1, 3))
        self.plots = dice.sample(PLOTS, dice.randint(1, 3))
        self.pooled = Random(f"pool {seed}").random() < POOLED
        if self.pooled:
            self.plots += ["pooled"] * 2
        for name, plot, likely in (
            ("interrupted", "interrupted", INTERRUPTED),
            ("foreign move", "foreign_move", FOREIGN),
        ):
            if Random(f"{name} {seed}").random() < likely:
                self.plots.append(plot)
        for plot in ("asked_again", "begun_in_doubt", "worn", "reshaped"):
            if Random(f"{plot} {seed}").random() < RENEWED:
                self.plots.append(plot)
        self.mishaps = dice.sample(MISHAPS, dice.randint(1, 4))
        if Random(f"clock {seed}").random() < CLOCKED:
            self.mishaps += ["clock"] * 2
            self.plots += ["slow_start"] * 2
        if Random(f"taken {seed}").random() < FOREIGN:
            self.mishaps.append("taken")
        self.plots += ["unheld"] * (2 if Random(f"a claim without a holder {seed}").random() < UNHELD else 0)
        if Random(f"healed {seed}").random() < HEALED:
            self.plots += ["healed"] * 2
        if Random(f"cloned {seed}").random() < CLONED:
            self.mishaps += ["clone"] * 2
        if Random(f"shared {seed}").random() < SHARED:
            self.plots += ["shared"] * 2
        if Random(f"suspended {seed}").random() < SUSPENDED:
            self.mishaps += ["sleep"] * 2
        self.fast = dice.random() < 0.5
        self.moves = 0
        self.host = dice.choice(self.hosts)

    def draw(self) -> History:
        """The history, told at a pace and on a schedule of its own."""
        dice = self.dice
        restless = dice.choice((0.0, 0.05, 0.3, 1.0))
        stall = dice.choice((0.0, 0.0, 0.002, 0.01))
        consumers = CONSUMERS[: dice.randint(2, len(CONSUMERS))]
        plots = [plot for consumer in consumers if (plot := self._plot(consumer))]
        trouble = [self._mishap() for _ in range(dice.choice((0, 1, 2, 4, 8)))]
        steps: list[Step] = []
        while plots:
            plot = dice.choice(plots)
            step = plot.pop(0)
            follows = (step.verb, plot[0].verb if plot else "")
            steps.append(step)
            if follows == ("looks", "gate_sees_end"):
                steps.append(Step("lets", (dice.randint(1, 60),)))  # the guest ends in the midst of the look
            elif follows != ("next_write", "looks"):
                steps += self._pause()
            if trouble and dice.random() < 0.4:
                for step in trouble.pop():
                    at_once = step.verb in AT_ONCE and dice.random() < 0.7
                    steps += [step] if at_once else [step, *self._pause()]
            plots = [plot for plot in plots if plot]
        served = Random(f"served {self.seed}")
        shared = served.random() < SHARED_JOURNAL
        if served.random() < (SERVERS_FAIL_SHARED if shared else SERVERS_FAIL):
            for _ in range(served.choice((1, 2, 4))):
                met = served.choice((None, *RowMeets))
                step = Step("placement_dies") if met is None else Step("next_row", (met,))
                steps.insert(served.randint(0, len(steps)), step)
        servers = 2 if shared else self.servers
        bound = Random(f"bound {self.seed}").random() < 0.5
        return History(
            self.seed, tuple(steps), self.hosts, servers, restless, stall, self.pooled, shared, bound
        )

    def _pause(self) -> list[Step]:
        choice = self.dice.random()
        if choice < 0.15:
            return []
        if choice < 0.4:
            return [Step("answers_come")]
        if choice < 0.65:
            return [Step("lets", (self.dice.randint(1, 40),))]
        if choice < 0.8 or self.fast:
            return [Step("waits", (self.dice.choice((1.0, 5.0, 20.0)),))]
        return [Step("waits", (self.dice.choice((60.0, 130.0, 300.0)),))]

    def _near(self) -> str:
        """Mostly the host where most of it happens."""
        return self.host if self.dice.random() < 0.7 else self.dice.choice(self.hosts)

    def _other(self, host: str) -> str:
        return self.dice.choice([each for each in self.hosts if each != host])

    def _amounts(self) -> Amounts:
        return tuple(self.dice.choice(self.shapes).items())

    # Plots

    def _plot(self, consumer: str) -> list[Step]:
        """One to three chapters about this consumer."""
        steps: list[Step] = []
        for _ in range(self.dice.randint(1, 3)):
            steps += getattr(self, f"_{self.dice.choice(self.plots)}")(consumer)
        return [step for step in steps if self.dice.random() < 0.93]

    def _life(self, consumer: str) -> list[Step]:
        host, steps = self._near(), []
        steps = [Step("claims", (host, consumer), self._amounts()), Step("guest_starts", (host, consumer))]
        steps += self._change(host, consumer) + self._end(host, consumer)
        return steps

    def _end(self, host: str, consumer: str) -> list[Step]:
        ends = [Step("guest_goes", (host, consumer)), Step("releases", (host, consumer))]
        if self.dice.random() < 0.2:
            ends.reverse()
        return ends if self.dice.random() < 0.7 else []

    def _change(self, host: str, consumer: str) -> list[Step]:
        verb = self.dice.choice(("", "", "", "guest_grows", "guest_loses_a_device", "guest_stops"))
        if verb == "guest_grows":
            return [Step(verb, (host, consumer), tuple(self.dice.choice(GROWTH).items()))]
        return [Step(verb, (host, consumer))] if verb else []

    def _brief(self, consumer: str) -> list[Step]:
        """Claimed and released again, without a guest."""
        host, amounts = self._near(), self._amounts()
        claim = Step("claims", (host, consumer), amounts)
        return [claim, Step("releases", (host, consumer)), *([claim] if self.dice.random() < 0.5 else [])]

    def _gated(self, consumer: str) -> list[Step]:
        """Started by libvirt, which asks the gate."""
        host = self._near()
        start = Step("gate_lets_in", (host, consumer), self._amounts())
        steps = [start, *self._change(host, consumer)]
        if self.dice.random() < 0.4:
            steps.append(Step("gate_lets_in", (host, consumer), self._amounts()))
        if self.dice.random() < 0.6:
            steps.append(Step("gate_sees_end", (host, consumer)))
        return steps

    def _slow_start(self, consumer: str) -> list[Step]:
        """The clock is set, and the agent looks, before the guest is there."""
        host = self._near()
        steps = [
            Step("starts_guests_slowly", (30.0,)),
            Step("gate_lets_in", (host, consumer), self._amounts()),
        ]
        steps += [*self._clock(), Step("looks", (host,))]
        return [*steps, Step("gate_sees_end", (host, consumer))] if self.dice.random() < 0.5 else steps

    def _pooled(self, consumer: str) -> list[Step]:
        """Started by libvirt with a disk in the pool, whose size the agent learns when it looks."""
        host = self._near()
        steps = [Step("gate_lets_in", (host, consumer), tuple(WITH_DISK.items())), Step("answers_come")]
        if self.dice.random() < 0.7:
            # A host that meets a reset connection reads at once what became of its write.
            steps.append(Step("next_write", (host, self.dice.choice((*DONE, *[Fate.LATE] * 6)), 1.0)))
        steps.append(Step("looks", (host,)))
        if self.dice.random() < 0.5:  # its domain does not name the disk: another claim replaces this one
            steps.append(Step("gate_sees_end", (host, consumer)))
            steps.append(Step("next_write", (host, self.dice.choice(DONE), 1.0)))
            steps.append(Step("gate_lets_in", (host, consumer), tuple(WITH_DISK.items())))
        if self.dice.random() < 0.6:
            steps.append(Step("gate_sees_end", (host, consumer)))
        return steps

    def _interrupted(self, consumer: str) -> list[Step]:
        """Claimed with a write that is executed late; the agent is killed before it knows the outcome."""
        host, fate = self._near(), self.dice.choice((Fate.LATE, Fate.PROXY_LATE))
        return [
            Step("next_write", (host, fate, self.dice.choice((50.0, 100.0, 250.0)))),
            Step("claims", (host, consumer), self._amounts()),
            Step("dies", (host,)),
            Step("starts", (host,)),
        ]

    def _asked_again(self, consumer: str) -> list[Step]:
        """The journal does not take a step, so the same is asked for once more."""
        host, amounts = self._near(), self._amounts()
        self.moves += 1
        move = (self._other(host), consumer, f"move{self.moves}", self.dice.choice(KINDS))
        asked = [Step("claims", (host, consumer), amounts)]
        asked += [Step("begins_move", move, amounts)] if self.dice.random() < 0.4 else []
        asked += [Step("releases", (asked[-1].args[0], consumer))] if self.dice.random() < 0.4 else []
        steps = []
        for step in asked:
            fails = Step("journal_fails_later", (step.args[0], self.dice.randint(0, 3)))
            steps += [fails] if self.dice.random() < 0.7 else []
            later = Step("waits", (70.0,)) if self.dice.random() < 0.5 else Step("answers_come")
            steps += [step, later, step, Step("answers_come")]
        return steps

    def _begun_in_doubt(self, consumer: str) -> list[Step]:
        """Ended at the destination right after a begin without an answer."""
        source, amounts = self._near(), self._amounts()
        self.moves += 1
        migration, target = f"move{self.moves}", self._other(source)
        later_s = self.dice.choice((1.0, 20.0, 50.0))
        steps = [
            Step("claims", (source, consumer), amounts),
            Step("guest_starts", (source, consumer)),
            Step("next_write", (target, self.dice.choice(FATES), later_s)),
            Step("begins_move", (target, consumer, migration, self.dice.choice(KINDS)), amounts),
            Step("answers_come"),
        ]
        return steps + self._ends_move(migration, target, target, likely="reverts")

    def _worn(self, consumer: str) -> list[Step]:
        """Written many times by others; then a write for it is in doubt while its devices go.

        Its claim has the units of fewer functions than Placement holds: Placement refuses that without them.
        """
        host, later_s = self._near(), self.dice.choice((20.0, 50.0, 100.0))
        return [
            Step("schedules", (host, consumer), tuple(SHAPES[1].items())),
            Step("rewrites_allocation", (consumer, 20)),
            Step("loses_functions", (host,)),
            Step("claims", (host, consumer), tuple(SHAPES[0].items())),
            Step("regains_functions", (host,)),
            Step("guest_starts", (host, consumer)),
            Step("guest_grows", (host, consumer), tuple(self.dice.choice(GROWTH[1:]).items())),
            Step("waits", (130.0,)),
            Step("next_write", (host, self.dice.choice(NOT_DONE), later_s)),
            Step("audits", (host,)),
            Step("answers_come"),
            Step("loses_functions", (host,)),
            Step("releases", (host, consumer)),
            Step("answers_come"),
            Step("guest_goes", (host, consumer)),
        ]

    def _reshaped(self, consumer: str) -> list[Step]:
        """Devices get providers of their own after an earlier function than this consumer's got free."""
        host, beside, amounts = self._near(), f"beside {consumer}", tuple(SHAPES[0].items())
        steps = [
            Step("reshapes", (host, "flat")),
            Step("waits", (5.0,)),
            Step("claims", (host, beside), amounts),
            Step("claims", (host, consumer), amounts),
            Step("releases", (host, beside)),
            Step("answers_come"),
            Step("reshapes", (host, "nested")),
        ]
        return steps + self._end(host, consumer)

    def _unheld(self, consumer: str) -> list[Step]:
        """Another client takes the allocation of a claim, or a part of it, and then CPUs and memory move."""
        host, cells = self._near(), ["by cell", "nested"]
        if self.dice.random() < 0.4:
            cells.reverse()
        amounts = self._amounts()
        if self.dice.random() < 0.3:
            amounts = (("VCPU", 3), ("PCPU", 2), ("MEMORY_MB", 10000))
        steps = [Step("reshapes", (host, cells[0])), Step("claims", (host, consumer), amounts)]
        if self.dice.random() < 0.6:
            steps += [Step("guest_starts", (host, consumer)), *self._change(host, consumer)]
        takes = self.dice.choice(("deletes_allocation", "deletes_allocation", "narrows_allocation"))
        steps += [Step(takes, (consumer,)), Step("looks", (host,)), Step("reshapes", (host, cells[1]))]
        if self.dice.random() < 0.5:
            steps += [Step("audits", (host,))]
        return steps + self._end(host, consumer)

    def _healed(self, consumer: str) -> list[Step]:
        """Another client takes the allocation of a guest away, and the answer to its repair is lost.

        Nobody asks for anything of the guest again.
        """
        host = self._near()
        return [
            Step("claims", (host, consumer), self._amounts()),
            Step("guest_starts", (host, consumer)),
            Step("deletes_allocation", (consumer,)),
            Step("looks", (host,)),
            Step("next_write", (host, self.dice.choice((*DONE, Fate.PROXY_LATE)), 50.0)),
            Step("audits", (host,)),
        ]

    def _takeover(self, consumer: str) -> list[Step]:
        host, amounts = self._near(), self._amounts()
        steps = [Step("schedules", (host, consumer), amounts)]
        if self.dice.random() < 0.4:
            steps += [Step("stranger_starts", (host, f"beside {consumer}"), amounts), Step("looks", (host,))]
        if self.dice.random() < 0.8:
            steps += [Step("claims", (host, consumer), amounts), Step("guest_starts", (host, consumer))]
        return steps + self._end(host, consumer)

    def _shared(self, consumer: str) -> list[Step]:
        """An admin gives its device to another guest as well; often one of them stops, or is gone."""
        host, beside = self._near(), f"beside {consumer}"
        amounts = tuple(self.dice.choice((SHAPES[0], SHAPES[1], SHAPES[3])).items())
        steps = [Step("stranger_starts", (host, consumer), amounts)]
        if self.dice.random() < 0.5:
            steps = [Step("claims", (host, consumer), amounts), Step("guest_starts", (host, consumer))]
        steps.append(Step("stranger_starts", (host, beside), (("VCPU", 1), ("MEMORY_MB", 1024))))
        steps.append(Step("guest_shares_a_device", (host, beside, consumer)))
        verb = self.dice.choice(("guest_stops", "guest_goes", "guest_loses_a_device", "looks", "audits"))
        about = (host,) if verb in ("looks", "audits") else (host, self.dice.choice((beside, consumer)))
        return [*steps, Step(verb, about), *self._end(host, consumer)]

    def _foreign_move(self, consumer: str) -> list[Step]:
        """Placed, started and moved by a control plane; this agent has no claim of it."""
        host, amounts = self._near(), self._amounts()
        self.moves += 1
        moved = (host, consumer, self._other(host), f"foreign{self.moves}")
        steps = [
            Step("schedules", (host, consumer), amounts),
            Step("stranger_starts", (host, consumer), amounts),
        ]
        steps += [Step("control_plane_moves", moved), Step("audits", (host,))]
        if self.dice.random() < 0.5:
            steps += [Step("guest_goes", (host, consumer)), Step("deletes_allocation", (moved[3],))]
        return steps

    def _stranger(self, consumer: str) -> list[Step]:
        host = self._near()
        steps = [Step("stranger_starts", (host, consumer), self._amounts()), *self._change(host, consumer)]
        return [*steps, Step("guest_goes", (host, consumer))] if self.dice.random() < 0.6 else steps

    def _move(self, consumer: str) -> list[Step]:
        """Claimed, moved once or twice, confirmed or reverted on either side, or never."""
        source, amounts = self._near(), self._amounts()
        steps = [Step("claims", (source, consumer), amounts), Step("guest_starts", (source, consumer))]
        for _ in range(self.dice.choice((1, 1, 2))):
            self.moves += 1
            migration, target = f"move{self.moves}", self._other(source)
            steps.append(Step("begins_move", (target, consumer, migration, self.dice.choice(KINDS)), amounts))
            goes = self.dice.random() < 0.7
            if goes:
                steps.append(Step("guest_moves", (source, consumer, target)))
            steps += self._ends_move(migration, source, target, likely="confirms" if goes else "reverts")
            source = target if goes else source
        return steps + self._end(source, consumer)

    def _ends_move(self, migration: str, source: str, target: str, *, likely: str) -> list[Step]:
        if self.dice.random() < 0.15:
            return []
        verb = likely if self.dice.random() < 0.85 else self.dice.choice(("confirms", "reverts"))
        steps = [Step(verb, (self.dice.choice((source, target)), migration))]
        if self.dice.random() < 0.2:
            steps.append(Step(verb, (self.dice.choice((source, target)), migration)))
        return steps

    def _resize(self, consumer: str) -> list[Step]:
        """On the same host."""
        host = self._near()
        self.moves += 1
        migration = f"move{self.moves}"
        steps = [Step("claims", (host, consumer), self._amounts()), Step("guest_starts", (host, consumer))]
        steps.append(Step("begins_move", (host, consumer, migration, "resize"), self._amounts()))
        if self.dice.random() < 0.5:
            steps.append(Step("guest_resizes", (host, consumer)))
        steps += self._ends_move(migration, host, host, likely="confirms")
        return steps + self._end(host, consumer)

    # Mishaps

    def _mishap(self) -> list[Step]:
        steps: list[Step] = getattr(self, f"_{self.dice.choice(self.mishaps)}")()
        return steps

    def _death(self) -> list[Step]:
        host = self._near()
        dies = Step("dies", (host,))
        if self.dice.random() < 0.7:
            dies = Step("will_die", (host, self.dice.randint(1, 80)))
        lost = [Step("loses_disk", (host,))] if self.dice.random() < 0.1 else []
        return [dies, *lost, Step("starts", (host,))]

    def _reshape(self) -> list[Step]:
        host = self._near()
        first = self.dice.choice(("flat", "nested"))
        second = [Step("reshapes", (host, "nested"))] if self.dice.random() < 0.6 else []
        return [Step("reshapes", (host, first)), *second]

    def _numa(self) -> list[Step]:
        host = self._near()
        steps = [Step("reshapes", (host, "by cell"))]
        return [*steps, Step("reshapes", (host, "nested"))] if self.dice.random() < 0.5 else steps

    def _functions(self) -> list[Step]:
        host = self._near()
        steps = [Step("loses_functions", (host,))]
        return [*steps, Step("regains_functions", (host,))] if self.dice.random() < 0.6 else steps

    def _clone(self) -> list[Step]:
        host = self._near()
        claims = Step("clone_claims", (host, self.dice.choice(CONSUMERS)), self._amounts())
        then = [claims, Step("clone_audits", (host,)), Step("audits", (host,)), Step("clone_audits", (host,))]
        return [Step("is_cloned", (host,)), *self.dice.sample(then, self.dice.randint(1, len(then)))]

    def _request(self) -> list[Step]:
        later_s = self.dice.choice((0.0, 1.0, 20.0, 50.0, 100.0, 250.0))
        return [Step("next_write", (self._near(), self.dice.choice(self.fates), later_s))]

    def _server(self) -> list[Step]:
        number = self.dice.randint(1, self.servers)
        return [Step("pauses", (number,)), Step("resumes", (number,))]

    def _wire(self) -> list[Step]:
        host = self._near()
        return [Step("is_cut", (host,)), Step("is_joined", (host,))]

    def _journal(self) -> list[Step]:
        host = self._near()
        if self.dice.random() < 0.4:
            return [Step("journal_fails", (host,))]
        return [Step("journal_stalls", (host, self.dice.choice((30.0, 70.0, 70.0))))]

    def _admin(self) -> list[Step]:
        return [Step("deletes_allocation", (self.dice.choice(CONSUMERS),))]

    def _clock(self) -> list[Step]:
        """Set, and often set right again, as NTP does."""
        seconds = self.dice.choice((-1, 1)) * self.dice.choice((1, 40, 3600, 400 * 86400, 4 * 365 * 86400))
        back = [Step("sets_clock", (-seconds,))] if self.dice.random() < 0.5 else []
        return [Step("sets_clock", (seconds,)), *back]

    def _sleep(self) -> list[Step]:
        """Shorter and longer than a request, a turn and a claim may take."""
        return [Step("is_suspended", (self._near(), self.dice.choice((20.0, 100.0, 900.0))))]

    def _taken(self) -> list[Step]:
        """Another client takes the allocation of whoever that is."""
        consumer = self.dice.choice(CONSUMERS)
        verb = self.dice.choice(("deletes_allocation", "empties_allocation", "narrows_allocation"))
        healed = [Step("audits", (self._near(),))] if self.dice.random() < 0.3 else []
        return [Step(verb, (consumer,)), *healed]

    def _look(self) -> list[Step]:
        return [Step(self.dice.choice(("audits", "looks")), (self._near(),))]


AT_ONCE = ("starts_guests_slowly", "next_write", "journal_fails", "journal_stalls", "will_die")
"""What is soon forgotten unless something follows it at once."""
PLOTS = ("life", "life", "brief", "gated", "takeover", "stranger", "move", "move", "resize")
MISHAPS = (
    "death",
    "death",
    "reshape",
    "reshape",
    "numa",
    "functions",
    "request",
    "request",
    "request",
    "server",
    "wire",
    "journal",
    "admin",
    "look",
)


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
        pooled=history.pooled,
        shared=history.shared,
        bound=history.bound,
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
        for change in ({"stall": 0.0}, {"restless": 0.0, "stall": 0.0}, {"servers": 1, "shared": False}):
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

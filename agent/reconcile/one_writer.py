"""Notices another agent that writes as this host: a cloned disk, or a copy of the state directory.

Each agent marks the host's root provider in Placement with an aggregate of its own. The first half of a mark
says of which host it is, the second half where the agent runs: the boot of the machine and the state
directory. A copy runs elsewhere, so its mark differs; a restarted agent finds its own. The journal has the
mark that was written last, so that an agent recognizes its own after a reboot. An agent that finds another
mark alone takes that away: an agent that runs puts its mark there again, and one that is no more does not.

A copy of the disk that is started while the first machine is down finds its own mark, and no agent answers.
The journal has the network cards of the machine as well: where none of them is here, this is another machine.
See docs/decisions/0016-one-writer-a-host.md.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from uuid import UUID, uuid5

from agent import log
from agent.config.settings import Settings
from agent.errors import AnotherWriter, PlacementConflict
from agent.placement.client import PlacementClient
from agent.providers.resolve import ResolvedDescription
from agent.state.identity import WriterRecord, network_cards, place_of
from agent.state.journal import Journal
from agent.tree import ProviderTree

LOG = log.get(__name__)

SETTLES_S = 300
"""How long an agent takes nothing away after it replaced a mark, if it never verifies by itself."""
_SHARED = 18
"""So many characters of a mark are the same for all agents of one host."""
_PURPOSE = "plimsoll writer"


def writer_mark(root_uuid: str, place: str) -> str:
    """The aggregate that an agent in this place puts on the host's root provider."""
    own = sha256(place.encode()).hexdigest()
    return _prefix(root_uuid) + f"-8{own[:3]}-{own[3:15]}"


def is_writer_mark(aggregate: str, root_uuid: str) -> bool:
    """Whether the aggregate is the mark of an agent of this host."""
    return aggregate.startswith(_prefix(root_uuid)) and len(aggregate) == len(root_uuid)


@lru_cache(maxsize=8)
def _prefix(root_uuid: str) -> str:
    return str(uuid5(UUID(root_uuid), _PURPOSE))[:_SHARED]


def writer_of(
    settings: Settings,
    journal: Journal,
    client: PlacementClient,
    root_uuid: str,
    place: str | None = None,
    cards: Collection[str] | None = None,
) -> "Writer | None":
    """The host's writer; None on the agent's own core, to which no other agent writes.

    `place` and `cards`: where the agent runs, if not in the state directory of this machine. Raises
    StateError.
    """
    if settings.placement.kind == "embedded":
        return None
    if place is None:
        place, cards = place_of(settings.state_path), network_cards()
    return Writer(journal, client, root_uuid, place, settings.association_refresh_s, cards=cards or ())


class Writer:
    """This agent as the one that writes for its host. One thread at a time may call, but for `holds_back`
    and `waits`.

    `verify_s` is the interval of the agents' verifications, in which each notices the other; 0 if they make
    none. `cards` are the addresses of the machine's network cards; empty: unknown. `clock` gives seconds that
    only rise.
    """

    def __init__(
        self,
        journal: Journal,
        client: PlacementClient,
        root_uuid: str,
        place: str,
        verify_s: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        cards: Collection[str] = (),
    ) -> None:
        self._journal = journal
        self._client = client
        self._root_uuid = root_uuid
        self._mark = writer_mark(root_uuid, place)
        self._verify_s = verify_s
        self._settles_s = 2.0 * (verify_s or SETTLES_S)
        self._cards = frozenset(cards)
        self._clock = clock
        self._record = journal.writer()
        self._since = clock()
        self._foreign = ""
        self._is_sent = False
        """Whether Placement has accepted this agent's challenge since it started."""

    def check(self, tree: ProviderTree) -> None:
        """Check that no other agent writes as this host, by the marks on the root of Placement's tree.

        Another mark that is alone there is challenged: this agent puts its own in its place, and raises as
        long as it waits whether the other one comes back. Once both are there, two agents run, and each
        raises. So does one on another machine than before, which writes nothing at all. Raises AnotherWriter,
        PlacementError, StateError.
        """
        if self._is_on_another_machine:
            raise AnotherWriter(self._moved(), provider=self._root_uuid)
        marks = self._marks(tree)
        self._foreign = self._foreign_in(tree)
        if self._foreign and self._record.own and self._mark not in marks:
            came_back = self._record.challenges and self._is_sent
            if marks == {self._foreign} and self._verify_s and not came_back:
                # Challenge the other one: put this agent's mark in its place, and wait from now on.
                own = self._with_own()
                self._remember(replace(self._record, own=own, settled=False, challenges=self._foreign))
                self._since = self._clock()
                self._is_sent = self._put_mark(tree, instead_of={self._foreign})
                self._foreign = ""
            else:
                self._put_mark(tree, instead_of=self._record.own)
        if not self._foreign and self._record.challenges and self._left_s() <= 0:
            # The other one did not come back within the time in which an agent that runs looks twice.
            mark = self._record.challenges
            LOG.warning("No other agent writes as this host: the mark %s did not come back.", mark)
            self._remember(replace(self._record, settled=True, challenges="", outlived=mark))
        if self._foreign or self._record.challenges:
            raise AnotherWriter(
                self._sentence(self._foreign) if self._foreign else self._waiting(),
                provider=self._root_uuid,
                mark=self._foreign or self._record.challenges,
            )
        if marks == {self._mark}:
            # It needs no other mark to recognize itself. A card of before may only be late: it still counts.
            settled, outlived = self._left_s() <= 0, self._record.outlived
            cards = tuple(sorted(self._cards.union(self._record.cards)))
            self._remember(WriterRecord((self._mark,), settled=settled, outlived=outlived, cards=cards))

    def refuse_foreign(self, tree: ProviderTree) -> None:
        """Check that no other agent may write as this host, and write nothing. Raises AnotherWriter."""
        why = self.holds_back(tree, taking=False)
        if why is not None:
            raise AnotherWriter(why, provider=self._root_uuid)

    def mark(self, resolved: ResolvedDescription, current: ProviderTree) -> ResolvedDescription:
        """The description with this agent's mark on the root, in place of those that `check` let pass.

        The journal has the mark before Placement may have it. Raises StateError.
        """
        marks = self._marks(current)
        if marks != {self._mark}:
            record = replace(
                self._record,
                own=self._with_own(),
                settled=self._record.takes_over or (self._record.settled and not marks),
            )
            self._remember(record)
        root = resolved.tree[self._root_uuid]
        replaced = marks if self._record.takes_over else marks.intersection(self._record.own)
        marked = replace(root, aggregates=frozenset({*(root.aggregates - replaced), self._mark}))
        tree = ProviderTree(marked if each.uuid == root.uuid else each for each in resolved.tree)
        return replace(resolved, tree=tree)

    @property
    def problem(self) -> str | None:
        """What the operator has to decide, a sentence: this agent's records, or Placement's, are older."""
        if not self._record.outlived:
            return None
        return (
            f"The host's root provider in Placement had the mark {self._record.outlived} of an agent that "
            "did not come back: this state directory, or Placement's database, was restored from a copy that "
            "is older than the last reboot, or another machine with this host's uuid is down. The agent "
            "claims and releases, and no repair takes anything away. If this is the only agent of the host: "
            f"stop it, run `plimsoll adopt {self._root_uuid}`, and start it."
        )

    def holds_back(self, tree: ProviderTree | None = None, *, taking: bool = True) -> str | None:
        """Why nothing may be healed for this host now, or nothing that takes something away; None: it may.

        `tree`: as Placement has it now. Any thread may call.
        """
        foreign = self._foreign_in(tree) if tree is not None else self._foreign
        if self._is_on_another_machine:
            return self._moved()
        if foreign:
            return self._sentence(foreign)
        if self._record.challenges:
            return self._waiting()
        if not taking:
            return None
        left_s = self._left_s()
        if left_s > 0:
            return (
                "This agent was started after a reboot or from a copy of its state directory. For another "
                f"{left_s:.0f} s it waits whether another agent writes as this host, and takes nothing away."
            )
        return self.problem

    def waits(self) -> bool:
        """Whether another agent writes as this host, or may still show that it does. Any thread may call."""
        return bool(
            self._is_on_another_machine or self._foreign or self._record.challenges or self._left_s() > 0
        )

    @property
    def _is_on_another_machine(self) -> bool:
        """Whether the agent wrote from a machine of which no network card is here."""
        known = self._record.cards
        return bool(known and self._cards) and self._cards.isdisjoint(known)

    def _put_mark(self, tree: ProviderTree, *, instead_of: Collection[str]) -> bool:
        """Put this agent's mark on the root; returns whether no other client wrote there in between."""
        root = tree[self._root_uuid]
        aggregates = root.aggregates.difference(instead_of) | {self._mark}
        try:
            self._client.put_aggregates(root.uuid, root.generation or 0, aggregates)
        except PlacementConflict as conflict:
            LOG.debug("The next pass marks the root provider: %s", conflict.message)
            return False
        return True

    def _with_own(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self._mark, *self._record.own)))

    def _left_s(self) -> float:
        return 0.0 if self._record.settled else max(0.0, self._settles_s - (self._clock() - self._since))

    def _remember(self, record: WriterRecord) -> None:
        if record != self._record:
            if self._record.settled and not record.settled:
                self._since = self._clock()
            self._journal.remember_writer(record)
            self._record = record

    def _marks(self, tree: ProviderTree) -> set[str]:
        root = tree.get(self._root_uuid)
        return {name for name in root.aggregates if is_writer_mark(name, self._root_uuid)} if root else set()

    def _foreign_in(self, tree: ProviderTree) -> str:
        """The mark of another agent on the root; empty if there is none."""
        foreign = self._marks(tree) - {self._mark, *self._record.own}
        return "" if self._record.takes_over or not foreign else min(foreign)

    def _waiting(self) -> str:
        return (
            f"The host's root provider in Placement ({self._root_uuid}) had the mark "
            f"{self._record.challenges} of another agent: another machine writes as this host, or this state "
            "directory, or Placement's database, was restored from a copy older than the last reboot. "
            f"For another {self._left_s():.0f} s the agent waits whether the other one puts its mark there "
            "again; until then nothing is written, and claims are closed. If you know that it is the only "
            f"one, stop it, run `plimsoll adopt {self._root_uuid}`, and start it."
        )

    def _moved(self) -> str:
        return (
            f"This agent wrote to Placement as this host ({self._root_uuid}) from another machine: of its "
            f"network cards {', '.join(self._record.cards)} none is here. The disk or the state directory "
            "was cloned, or moved to another chassis. Nothing is written, and claims are closed. If the "
            "other machine still exists, give this one a host_id of its own. If this one takes its place, "
            "stop the agent, run "
            f"`plimsoll adopt {self._root_uuid}`, and start it."
        )

    def _sentence(self, foreign: str) -> str:
        return (
            f"Another Plimsoll agent writes to Placement as this host ({self._root_uuid}): the root provider "
            f"has its mark {foreign}. The disk or the state directory was cloned or lost, or two "
            "machines have one host_id. Nothing is written, and claims are closed. Stop the other agent and "
            "give its machine a host_id of its own. Then stop this agent, run `plimsoll adopt "
            f"{self._root_uuid}`, and start it."
        )

"""The kinds of findings that the audit reports: one class each, and the registry of all of them.

Those that are judged on the same ground stand together: `claims` (a consumer's claim and its allocations),
`guests` (a guest and what it has), `moves` (an instance that is on another host) and `host` (the devices and
the providers). CONTRIBUTING.md has the recipe for a new one.

Which judgement: `judge_row` compares what one instance has with what its guest uses, and may return several
findings. `judge_consumer` and `judge_move` compare with all that Placement has for one consumer, or for the
two of a move; only the first kind that returns a finding counts, because each repair writes all of it.
`judge_host` is for providers and devices.

`plimsoll audit` judges every row and every consumer. The audit on its schedule judges every row, the
suspects (`suspects` of `agent.audit.observation`) and, in turn, IN_TURN other consumers. Extend the
suspects only for what is rare: each costs a request in each audit. A repair that no step can express needs
a new step in `agent.audit.finding`, and its execution in `agent.audit.auditor`.
"""

from collections.abc import Iterable
from itertools import chain

from agent.audit.cases import ConsumerCase, FindingKind, MoveCase, RowCase
from agent.audit.finding import Finding
from agent.audit.findings import claims, guests, host, moves
from agent.audit.observation import Observation

FINDING_KINDS: tuple[FindingKind, ...] = (
    claims.StuckConsumer(),
    claims.LeakedClaim(),
    claims.Doubled(),
    claims.AmountsDiffer(),
    claims.WrongProvider(),
    moves.MovedAway(),
    moves.UnlinkedMove(),
    guests.UnclaimedInstance(),
    guests.AbsentGuest(),
    guests.UsesMore(),
    guests.UsesLess(),
    guests.AnotherUnit(),
    guests.VanishedUnit(),
    guests.WrongMode(),
    host.SharedUnit(),
    moves.StaleMigration(),
    claims.OrphanedAllocation(),
    host.UnknownDevice(),
    host.UnhealthyDevice(),
    host.ShrunkInventory(),
)
"""Every kind, in the order in which they judge a consumer or a move; the first finding counts."""

KIND_NAMES: tuple[str, ...] = tuple(kind.name for kind in FINDING_KINDS)


def judge_row(case: RowCase) -> Iterable[Finding]:
    """All findings about what the instance has and uses."""
    return chain.from_iterable(kind.judge_row(case) for kind in FINDING_KINDS)


def judge_consumer(case: ConsumerCase) -> Finding | None:
    """The first finding about the consumer. None: all agrees, or the consumer cannot be compared now."""
    if not case.is_comparable:
        return None
    kinds = (kind for kind in FINDING_KINDS if kind.judges_moves or not case.is_moving)
    return _first(kind.judge_consumer(case) for kind in kinds)


def judge_move(case: MoveCase) -> Finding | None:
    """The first finding about the move. None: it goes on by itself."""
    return _first(kind.judge_move(case) for kind in FINDING_KINDS)


def judge_host(observation: Observation) -> Iterable[Finding]:
    """The findings about providers and devices."""
    return chain.from_iterable(kind.judge_host(observation) for kind in FINDING_KINDS)


def _first(findings: Iterable[Finding | None]) -> Finding | None:
    return next((finding for finding in findings if finding is not None), None)

"""The kinds of findings that the audit reports: one class in one file each, and the registry of all of them.

To add a kind of finding, for example `lost thing`:

1. `agent/audit/findings/lost_thing.py`: a subclass of `FindingKind` with its `name`, its `rows` for the
   documentation, and the judgements that it makes. A judgement is a pure function of its argument: a
   `ConsumerCase` (one consumer), a `MoveCase` (one move) or an `Observation` (providers and devices). It
   returns a `Finding` with a sentence for the operator, and the steps of `agent.audit.repair` that repair
   it, if any.
2. This file: import it and add it to `FINDING_KINDS`. The order matters: a consumer or a move has one finding
   at most, that of the first kind that returns one.
3. `tests/unit/audit/findings/test_lost_thing.py`: the judgement, from values made by `kits.audit`.
4. `./dev generate`: it writes the table in docs/audit.md and the list of kinds in agent/api/openapi.json.
5. A line in CHANGELOG.md.

NAME of the module is the finding's name with `_` for each space. The metric `plimsoll_audit_findings`, the
command line, the status page and the history show a new kind without a change; it also raises the alert
PlimsollFindings, and exit code 3 of `plimsoll audit`.

`plimsoll audit` judges every consumer. The audit on its schedule judges the suspects (`agent.audit.suspects`)
and, in turn, IN_TURN others. Extend the suspects only for what is rare: each costs a request in each audit.
A repair that no step can express needs a new step in `agent.audit.repair`, and its execution in
`agent.audit.repairer`.
"""

from collections.abc import Iterable
from itertools import chain

from agent.audit.cases import ConsumerCase, MoveCase
from agent.audit.finding import Finding, FindingKind
from agent.audit.findings.amounts_differ import AmountsDiffer
from agent.audit.findings.doubled import Doubled
from agent.audit.findings.leaked_claim import LeakedClaim
from agent.audit.findings.orphaned_allocation import OrphanedAllocation
from agent.audit.findings.shrunk_inventory import ShrunkInventory
from agent.audit.findings.stale_migration import StaleMigration
from agent.audit.findings.stuck_consumer import StuckConsumer
from agent.audit.findings.unclaimed_instance import UnclaimedInstance
from agent.audit.findings.unknown_device import UnknownDevice
from agent.audit.findings.wrong_provider import WrongProvider
from agent.audit.observation import Observation

FINDING_KINDS: tuple[FindingKind, ...] = (
    StuckConsumer(),
    LeakedClaim(),
    Doubled(),
    AmountsDiffer(),
    WrongProvider(),
    UnclaimedInstance(),
    StaleMigration(),
    OrphanedAllocation(),
    UnknownDevice(),
    ShrunkInventory(),
)
"""Every kind, in the order in which they judge a consumer or a move."""

KIND_NAMES: tuple[str, ...] = tuple(kind.name for kind in FINDING_KINDS)


def judge_consumer(case: ConsumerCase) -> Finding | None:
    """The first finding about the consumer. None: all agrees, or the consumer cannot be compared now."""
    if not case.is_comparable:
        return None
    return _first(kind.judge_consumer(case) for kind in FINDING_KINDS)


def judge_move(case: MoveCase) -> Finding | None:
    """The first finding about the move. None: it goes on by itself."""
    return _first(kind.judge_move(case) for kind in FINDING_KINDS)


def judge_host(observation: Observation) -> Iterable[Finding]:
    """The findings about providers and devices."""
    return chain.from_iterable(kind.judge_host(observation) for kind in FINDING_KINDS)


def _first(findings: Iterable[Finding | None]) -> Finding | None:
    return next((finding for finding in findings if finding is not None), None)

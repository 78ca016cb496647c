"""A finding of the audit, and the base class of the kinds of findings. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent.audit.cases import ConsumerCase, MoveCase
from agent.audit.observation import Observation
from agent.audit.repair import Repair


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the guests, the claims and Placement.

    `kind` is the stable name of its kind, `subject` the uuid of a consumer or a provider, or a device's unit.
    `evidence` is JSON-ready. `own`: the agent provably caused it, so it may repair it by itself. A finding
    without `repair` is only reported; its `reason` says what the operator can do.
    """

    kind: str
    subject: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    repair: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table of findings in docs/audit.md: when it is reported, and what its repair does."""

    meaning: str
    repair: str
    automatic: str


class FindingKind:
    """One kind of finding. A subclass overrides one or more of the judgements, which are pure.

    Each judgement returns findings whose `kind` is the class's `name`.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[TableRow, ...]]

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """The finding about one comparable consumer."""
        return None

    def judge_move(self, case: MoveCase) -> Finding | None:
        """The finding about one move that may not end by itself."""
        return None

    def judge_host(self, observation: Observation) -> Iterable[Finding]:
        """The findings about the host's providers and devices."""
        return ()

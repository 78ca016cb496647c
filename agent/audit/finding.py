"""A finding of the audit, and the base class of the kinds of findings. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agent.audit.cases import ConsumerCase, MoveCase, RowCase
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
    """A row of the table of findings in docs/audit.md.

    `meaning` says when the finding is reported, and `repair` what its repair does. Without a repair, `repair`
    is what the operator does instead ("None: move the guest."). `automatic` says when the agent repairs it by
    itself with `heal = own`: "yes", "no", or a condition; without a repair it is "no".
    """

    meaning: str
    repair: str
    automatic: str


class FindingKind:
    """One kind of finding. A subclass overrides one or more of the judgements, which are pure.

    Each judgement returns findings whose `kind` is the class's `name`.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[TableRow, ...]]

    judges_moves: ClassVar[bool] = False
    """Whether `judge_consumer` also judges the consumers of a move under way, each by its claim."""

    def judge_row(self, case: RowCase) -> Iterable[Finding]:
        """The findings about what one instance has and uses; they stand beside every other finding."""
        return ()

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """The finding about one comparable consumer, by all that Placement has for it."""
        return None

    def judge_move(self, case: MoveCase) -> Finding | None:
        """The finding about one move that may not end by itself."""
        return None

    def judge_host(self, observation: Observation) -> Iterable[Finding]:
        """The findings about the host's providers and devices."""
        return ()

"""An allocation that belongs to no guest, claim or move of this host."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import WriteAllocations
from agent.errors import counted


class OrphanedAllocation(FindingKind):
    """A consumer that only Placement knows. An instance that is about to start looks the same."""

    name = "orphaned allocation"
    rows = (
        TableRow(
            "A consumer without guest and claim has an allocation here. An instance that is about to start "
            "looks the same.",
            "Its allocation on this host is deleted.",
            "no",
        ),
        TableRow(
            "The same, where an instance with a claim here is on another host by now: the consumer may be "
            "that instance's migration.",
            "None: find out in the control plane which consumer it is.",
            "no",
        ),
        TableRow(
            "The same, where migrations of the consumer's project and user have resources in Placement: a "
            "control plane may be moving the instance to this host.",
            "None until these moves are over: find out in the control plane whether one is the consumer's.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A consumer with an allocation here alone, which is no migration."""
        if case.claim is not None or case.guest is not None or case.is_migration:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has an allocation on this host, but neither a guest nor a claim here. "
            f"{_doubt(case.possible_origins, case.observation.migrations)}",
            case.evidence,
            repair=()
            if case.possible_origins or case.observation.migrations
            else (_without_this_host(case),),
        )


def _doubt(possible_origins: tuple[str, ...], migrations: int) -> str:
    if not possible_origins and migrations:
        return (
            "A control plane may be moving the instance to this host: "
            f"{counted(migrations, 'migration')} of its project and user "
            f"{'has' if migrations == 1 else 'have'} resources in Placement. Find out in the control plane "
            "whether one is its own. The agent repairs nothing on a guess."
        )
    if not possible_origins:
        return "An instance that is about to start looks the same."
    return (
        "It is perhaps a new instance, and perhaps what "
        f"{', '.join(possible_origins)} left here in a move: find out in the control plane which consumer "
        "it is. The agent repairs nothing on a guess."
    )


def _without_this_host(case: ConsumerCase) -> WriteAllocations:
    return WriteAllocations(replace(case.placed, allocations=case.remainder))

"""A guest without something that it has claimed."""

from collections.abc import Iterator

from agent.audit.cases import RowCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.refusal import amounts_text


class UsesLess(FindingKind):
    """A guest that runs with less than its claim, or, without a claim, its allocation."""

    name = "uses less"
    rows = (
        TableRow(
            "A guest runs without something that it has: a GPU, a virtual function, CPUs or memory. Disks "
            "do not count, because a driver does not see all of them.",
            "None: give the guest what it has, or resize the instance.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The amounts, and the units where they are known."""
        use = case.use
        if use is None or not use.less:
            return
        units = [unit for names in use.missing.values() for unit in names]
        source = "its claim" if use.claim else "its allocation"
        yield Finding(
            self.name,
            case.instance,
            f"The guest {case.instance} uses less than {source} has: {amounts_text(use.less, use.missing)} "
            "are missing. Give the guest what it has, or resize the instance.",
            {**case.evidence, "missing": dict(use.less), "units": units},
        )

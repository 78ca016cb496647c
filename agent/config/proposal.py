"""Proposes a configuration for a new host: the options that it needs, each with the reason. Pure."""

import textwrap
from collections.abc import Iterable

from agent.driver import Suggestion, Topology

MEMORY_SHARE = 32
MEMORY_MIN_MB = 512
MEMORY_MAX_MB = 8192
WIDTH = 100
HEAD = """# Proposed by `plimsoll init` for this host. `plimsoll config sample` shows every option;
# `plimsoll config validate` checks this file.
"""


def own_suggestions(host: str, driver: str, topology: Topology) -> tuple[Suggestion, ...]:
    """The options that a host needs with any driver."""
    memory_mb = sum(cell.memory_mb for cell in topology.cells)
    reserved_mb = min(max(memory_mb // MEMORY_SHARE, MEMORY_MIN_MB), MEMORY_MAX_MB)
    return (
        Suggestion(
            "DEFAULT", "host", host, "The name of the host's root provider. It should not change later."
        ),
        Suggestion("DEFAULT", "compute_driver", driver, "The virt driver."),
        Suggestion(
            "DEFAULT",
            "reserved_host_memory_mb",
            str(reserved_mb),
            f"Of {memory_mb} MiB, for the host itself and for QEMU's own memory besides that of the guests.",
        ),
        Suggestion(
            "placement", "kind", "embedded", "This agent keeps the claims; `remote` joins an OpenStack cloud."
        ),
    )


def propose(suggestions: Iterable[Suggestion]) -> str:
    """The text of a configuration file, with groups in the order of their first suggestion."""
    groups: dict[str, list[Suggestion]] = {}
    for suggestion in suggestions:
        groups.setdefault(suggestion.group, []).append(suggestion)
    blocks = [HEAD]
    for group, members in groups.items():
        blocks.append(f"\n[{group}]\n")
        blocks.extend(_option(suggestion) for suggestion in members)
    return "".join(blocks)


def _option(suggestion: Suggestion) -> str:
    why = textwrap.wrap(suggestion.why, WIDTH, initial_indent="# ", subsequent_indent="# ")
    mark = "" if suggestion.certain else "#"
    return "\n".join((*why, f"{mark}{suggestion.option} = {suggestion.value}", ""))

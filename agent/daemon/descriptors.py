"""The file descriptors that the agent's process may have."""

import resource
from contextlib import suppress

from agent.errors import MORE_DESCRIPTORS, StateError, counted

DESCRIPTORS_MIN = 32
"""An agent that is idle has about 20: its databases, listeners and selectors."""


def take_all_descriptors() -> None:
    """Raise this process's limit to the hard one. Raises StateError where that is too low for an agent.

    The soft limit is low for programs that use select(2), which the agent does not.
    Source: systemd.exec(5), LimitNOFILE=
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # it stays as it is, which is enough for most hosts
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < DESCRIPTORS_MIN:
        raise StateError(
            f"The agent may open {counted(limit, 'file')} at the same time and needs at least "
            f"{DESCRIPTORS_MIN}: {MORE_DESCRIPTORS}."
        )

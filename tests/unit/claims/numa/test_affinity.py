"""nova's NUMA policies: on which cell a device may be, once the guest's cells are known."""

import pytest

from agent.claims.numa.affinity import nova_affinity
from agent.claims.parse_request import RequestGroup

SOCKETS = {0: 0, 1: 0, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("policy", "same", "none", "same_socket", "other_socket"),
    [
        (None, 0, 0, 1, 1),
        ("preferred", 0, 1, 2, 2),
        ("legacy", 0, 1, "is on NUMA cell 1", "is on NUMA cell 2"),
        ("required", 0, "has no NUMA affinity", "is on NUMA cell 1", "is on NUMA cell 2"),
        ("socket", 0, "has no NUMA affinity", 1, "is on NUMA cell 2"),
    ],
)
def test_where_a_device_may_be(
    policy: str | None, same: int, none: int | str, same_socket: int | str, other_socket: int | str
) -> None:
    affinity, group = nova_affinity(SOCKETS), RequestGroup("1", {"PGPU": 1}, numa_policy=policy)
    ranks = {0: same, None: none, 1: same_socket, 2: other_socket}
    for cell, rank in ranks.items():
        found = affinity(group, cell, {0})
        if isinstance(rank, str):
            assert found == f"{rank}, the guest would be on 0 (policy {policy})"
        else:
            assert found == rank


def test_the_socket_of_a_cell_that_nobody_knows_is_no_ones() -> None:
    group = RequestGroup("1", {"PGPU": 1}, numa_policy="socket")
    assert isinstance(nova_affinity({})(group, 1, {0}), str)

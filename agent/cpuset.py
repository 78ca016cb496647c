"""CPU sets as Linux, libvirt and nova write them: "0-3,8,^2". Pure."""

import re
from collections.abc import Iterable

CPU_ID_MAX = 65535
_ITEM = re.compile(r"(\^?)([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


def parse_cpu_set(text: str) -> frozenset[int]:
    """The CPU ids in `text`; "^n" removes ids. Raises ValueError whose text is a clause for an error."""
    added: set[int] = set()
    removed: set[int] = set()
    for item in (part.strip() for part in text.split(",") if part.strip()):
        match = _ITEM.fullmatch(item)
        if not match:
            raise ValueError(f"{item!r} is neither a CPU id nor a range such as 0-3")
        first, last = int(match[2]), int(match[3] or match[2])
        if first > last or last > CPU_ID_MAX:
            raise ValueError(f"{item!r} is not a range of CPU ids from 0 to {CPU_ID_MAX}")
        (removed if match[1] else added).update(range(first, last + 1))
    return frozenset(added - removed)


def format_cpu_set(cpus: Iterable[int]) -> str:
    """The shortest text for a set of CPU ids, in ascending order; "" for the empty set."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)

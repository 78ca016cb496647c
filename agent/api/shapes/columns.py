"""The columns of the command line's tables, and how they show lists, amounts and times."""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


class Column(NamedTuple, Generic[Row]):
    """A column of a table: its title, and what it shows of a row.

    A column that shows only whole numbers is aligned to the right.
    """

    title: str
    show: Callable[[Row], object]


def amounts_text(resources: Mapping[str, int]) -> str:
    """`DISK_GB=20,VCPU=2`, or `-` where there is nothing."""
    return list_text(f"{name}={amount}" for name, amount in sorted(resources.items()))


def list_text(values: Iterable[object]) -> str:
    """`1,2,3`, or `-` where there is nothing."""
    return ",".join(map(str, values)) or "-"


def consumer_text(uuid: str | None, name: str) -> str:
    """`UUID (name)`, or the uuid alone where there is no name; `-` where there is no consumer."""
    if not uuid:
        return "-"
    return f"{uuid} ({name})" if name else uuid


def local_time(moment: str | None) -> str:
    """A moment of the API in local time, as people read it; `-` where there is none."""
    if not moment:
        return "-"
    from datetime import datetime

    return datetime.fromisoformat(moment).astimezone().isoformat(sep=" ", timespec="seconds")

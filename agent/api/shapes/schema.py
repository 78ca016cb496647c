"""What every shape is written with: what a field says beside its type, the columns of tables, errors.

Inside `Annotated`, a string is the description of the field, `Schema` holds keywords of JSON Schema,
`Values` names the allowed values, `From` the attribute that is shown, and `Named` makes the type a component
of its own in the OpenAPI document. A table of the command line is a tuple of `Column`; the functions below
`Column` show lists, amounts and times in its cells.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

Shape = TypeVar("Shape")


class Schema:
    """Keywords of JSON Schema, such as `Schema(minimum=0)`."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


class From(Schema):
    """The attribute of the agent's value that the field shows, where it has another name than the field.

    A dotted name, `claim.consumer`, is an attribute of an attribute.
    """

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self.attribute = attribute


class Values:
    """The values that a field may have, those of an enumeration of the agent, `module:name`.

    It is imported when the OpenAPI document is generated: shapes stay cheap to import. `in_order`: the values
    are sorted. `without` is a value that only the agent itself uses.
    """

    def __init__(self, enumeration: str, *, in_order: bool = False, without: str = "") -> None:
        self._module, _, self._name = enumeration.partition(":")
        self._in_order = in_order
        self._without = without

    def read(self) -> list[str]:
        """The values."""
        from importlib import import_module

        values = [str(value) for value in getattr(import_module(self._module), self._name)]
        return [value for value in (sorted(values) if self._in_order else values) if value != self._without]


class Named:
    """The name and the description of a component of the OpenAPI document."""

    def __init__(self, name: str, description: str = "") -> None:
        self.name = name
        self.description = description


def extensible(shape: type[Shape]) -> type[Shape]:
    """Mark a shape that may get further keys: a program must ignore the keys that it does not know."""
    shape.__extensible__ = True  # type: ignore[attr-defined]
    return shape


Uuid = Annotated[str, Schema(format="uuid")]
DATE_TIME = Schema(format="date-time")
Moment = Annotated[str, DATE_TIME]
"""RFC 3339, UTC."""
EXACT = Schema()
ExactMoment = Annotated[str, DATE_TIME, EXACT]
"""The same, to the millisecond."""
Count = Annotated[int, Schema(minimum=0)]
Positive = Annotated[int, Schema(minimum=1)]

Notes = Annotated[
    list[str],
    "sentences on extra specs and image properties without effect, in the answer to a request with such",
]

ResourcesShape = Annotated[dict[str, Count], Named("Resources", "{resource class: amount}")]


class NothingShape(TypedDict):
    """An empty object."""


class ErrorDetailShape(TypedDict):
    """What went wrong."""

    code: Annotated[str, Schema(pattern=r"^plimsoll\.[a-z0-9_.]+$"), "stable: what a program matches"]
    message: Annotated[str, "one sentence that an operator can act on"]
    details: dict[str, Any]


class ErrorShape(TypedDict):
    """Every error has this shape."""

    error: ErrorDetailShape


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

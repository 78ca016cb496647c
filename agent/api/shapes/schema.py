"""What the field of a shape says beside its type, and the types that several shapes share.

Inside `Annotated`, a string is the description of the field, `Schema` holds keywords of JSON Schema, `Values`
names the allowed values, and `Named` makes the type a component of its own in the OpenAPI document.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

Shape = TypeVar("Shape")


class Schema:
    """Keywords of JSON Schema, such as `Schema(minimum=0)`."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


class Values:
    """The values that a field may have, those of an enumeration of the agent.

    `read` imports the enumeration when the OpenAPI document is generated: shapes stay cheap to import.
    """

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self.read = read


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
Moment = Annotated[str, Schema(format="date-time")]
"""RFC 3339, UTC."""
Count = Annotated[int, Schema(minimum=0)]
Positive = Annotated[int, Schema(minimum=1)]

Notes = Annotated[
    list[str],
    "sentences on extra specs and image properties without effect, in the answer to a request with such",
]

ResourcesShape = Annotated[dict[str, Count], Named("Resources", "{resource class: amount}")]

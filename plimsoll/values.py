"""JSON to the values of `plimsoll.shapes` and back, by the types of their fields."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Self, TypeVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote, urlencode

from plimsoll.errors import BadAnswer, Incompatible, InvalidRequest, PlimsollError
from plimsoll.version import __version__

T = TypeVar("T")


class Gap(NamedTuple):
    """Events may be missing here: read anew what is known of the host. `id` is that of the newest event."""

    id: str


class Held:
    """A claim that its context releases where its block raises, and only then.

    The context is of the call that claimed: `with agent.claim(...) as claim:`. It leaves a claim that was
    there before. Where the release fails too, the block's exception has a note that says so.
    """

    __slots__ = ("_release",)
    _release: Callable[[], Any] | None

    def __enter__(self) -> Self:
        if not hasattr(self, "_release"):
            raise TypeError("This claim was only shown: the context is that of a call which claims.")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._release is not None:
            try:
                self._release()
            except PlimsollError as failure:
                error.add_note(f"The claim was not released: {failure.message} ({failure.key})")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._release is not None:
            try:
                await cast(Awaitable[Any], self._release())
            except PlimsollError as failure:
                error.add_note(f"The claim was not released: {failure.message} ({failure.key})")


def held(claim: T, release: Callable[[], Any] | None) -> T:
    """The claim, which its context releases by `release`; None: not at all, another call made it."""
    object.__setattr__(claim, "_release", release)
    return claim


def claim_body(
    asked: Any, resources: Mapping[str, int] | None = None, consumer: str = "", name: str = ""
) -> dict[str, Any]:
    """The JSON of a request: `asked` (a shape or JSON), and a group without a suffix for the `resources`.

    Raises InvalidRequest where they cannot be that.
    """
    try:
        body: dict[str, Any] = {} if asked is None else encode(asked)
        if resources is not None:
            body["groups"] = [{"resources": dict(resources)}, *body.get("groups", ())]
        return body | ({"consumer": consumer} if consumer else {}) | ({"name": name} if name else {})
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"What is asked for cannot be sent as JSON: {error}.") from error


def new_key() -> str:
    """A uuid that no other call has."""
    from uuid import uuid4

    return str(uuid4())


def domain_key(xml: str) -> str:
    """What the agent knows the domain by: its uuid, else its name; empty where it has neither."""
    found = re.search(r"<uuid>\s*([^<\s]+)", xml) or re.search(r"<name>\s*([^<]*[^<\s])", xml)
    return found[1] if found else ""


def url(path: str, *parts: str, **query: str | int | bool | None) -> str:
    """The path with `{}` for each part, and a query of what is neither None nor False."""
    given = {
        key: "true" if value is True else str(value)
        for key, value in query.items()
        if value is not None and value is not False
    }
    filled = path.format(*(quote(part, safe="", errors="surrogatepass") for part in parts))
    return f"{filled}?{urlencode(given, errors='surrogatepass')}" if given else filled


def encode(value: Any) -> Any:
    """The value as JSON; what is None and has a default is left out."""
    if hasattr(value, "__dataclass_fields__"):
        return {
            key: encode(getattr(value, name))
            for name, key, _, needed in _plan(cast(Any, type(value)))
            if needed or getattr(value, name) is not None
        }
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def decode(kind: type[T], record: Any, agent_version: str = "") -> T:
    """The shape in the JSON of an answer; fields that the shape does not have are ignored.

    Raises Incompatible where a field is missing, BadAnswer where one has another type.
    """
    return cast(T, _decode(kind, record, getattr(kind, "__name__", "answer"), agent_version))


def _decode(kind: Any, value: Any, path: str, agent_version: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        rest = [argument for argument in arguments if argument is not NoneType]
        kind = rest[0] if len(rest) == 1 else next((t for t in rest if t is type(value)), rest[0])
        return _decode(kind, value, path, agent_version)
    if origin is tuple and isinstance(value, list):
        item = arguments[0]
        return tuple(_decode(item, part, f"{path}[{at}]", agent_version) for at, part in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {
            name: _decode(arguments[1], part, f"{path}[{name!r}]", agent_version)
            for name, part in value.items()
        }
    if hasattr(kind, "__dataclass_fields__") and isinstance(value, dict):
        given = {}
        for name, key, form, needed in _plan(cast(Any, kind)):
            if key in value:
                given[name] = _decode(form, value[key], f"{path}.{key}", agent_version)
            elif needed:
                raise Incompatible(f"{path}.{key}", agent_version, __version__)
        return cast(Any, kind)(**given)
    if kind is datetime and isinstance(value, str):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    if isinstance(kind, type) and (type(value) is kind or (kind is float and type(value) is int)):
        return value
    raise BadAnswer(
        f"In the agent's answer {path} is {type(value).__name__}, which no agent of version {__version__} "
        f"answers; the agent is of version {agent_version or 'unknown'}."
    )


@cache
def _plan(kind: type[Any]) -> tuple[tuple[str, str, Any, bool], ...]:
    """(name, key in JSON, type, whether it is needed) of each field.

    The name of a field whose key is a word of Python has an underscore behind it.
    """
    from dataclasses import MISSING, fields

    hints = get_type_hints(kind)
    return tuple(
        (field.name, field.name.removesuffix("_"), hints[field.name], field.default is MISSING)
        for field in fields(kind)
    )

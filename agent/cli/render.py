"""Turns what the agent said into lines: tables for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.cli.terminal import Style, plain

if TYPE_CHECKING:
    from agent.api.shapes.columns import Column, Row

Json = dict[str, Any]


def clean(lines: Iterable[str]) -> Iterator[str]:
    return map(plain, lines)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Columns as wide as their widest cell, numbers to the right; nothing is cut off: it can be grepped."""
    cells = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headings), *cells]) for i in range(len(headings))]
    numeric = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(headings))]
    for row in [list(headings), *cells]:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(aligned).rstrip()


def table_lines(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Iterator[str]:
    """A table with a line for each row, as the columns show it."""
    titles = [column.title for column in columns]
    return table(titles, [[column.show(row) for column in columns] for row in rows])


def status_lines(status: Json, style: Style) -> Iterator[str]:
    colour = {"ready": "green", "degraded": "yellow"}.get(status["state"], "red")
    yield from _fields(
        [
            ("host", f"{plain(status['host'])}  {plain(status.get('uuid') or '(no provider yet)')}"),
            ("state", style.paint(colour, plain(status["state"]))),
            *(("", plain(reason)) for reason in status["reasons"]),
            ("since", moment(status.get("since"))),
            ("agent", f"{plain(status['version'])}, pid {status['pid']}"),
            ("driver", _health(status["driver"], "name", style)),
            ("placement", _health(status["placement"], "kind", style)),
            ("claims", _claims(status["claims"], style)),
            ("findings", _findings(status.get("findings", 0), style)),
            ("last pass", _last_pass(status.get("last_pass"))),
        ]
    )


def _fields(fields: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        yield f"{name:<{width}}  {value}".rstrip()


def _health(part: Json, name: str, style: Style) -> str:
    if part["ok"]:
        return f"{plain(part[name])}, {style.paint('green', 'ok')}"
    error = plain(part.get("error") or "no reason given")
    return f"{plain(part[name])}, {style.paint('red', 'not ok')}: {error}"


def _claims(claims: Json, style: Style) -> str:
    state = style.paint("green", "open") if claims["open"] else style.paint("red", "closed")
    reason = "" if claims["open"] or not claims.get("reason") else f": {plain(claims['reason'])}"
    return f"{claims['count']}, {state}{reason}"


def _findings(number: int, style: Style) -> str:
    return style.paint("yellow", f"{number}, which `plimsoll audit` shows") if number else "none"


def _last_pass(last: Json | None) -> str:
    if not last or not last.get("sentence"):
        return "none yet"
    duration = last.get("duration_ms")
    took = f" ({duration:.1f} ms)" if isinstance(duration, int | float) else ""
    return f"{moment(last.get('at'))}  {plain(last['sentence'])}{took}"


def moment(at: Any) -> str:
    """The agent's moments are RFC 3339; people read local time."""
    if not at:
        return "-"
    from datetime import datetime

    return datetime.fromisoformat(at).astimezone().isoformat(sep=" ", timespec="seconds")


def instances_lines(instances: Sequence[Json]) -> Iterator[str]:
    if not instances:
        yield "no guests, no claims"
        return
    rows = [_instance(instance) for instance in instances]
    yield from table(("UUID", "NAME", "GUEST", "CLAIM", "RESOURCES"), rows)


def _instance(instance: Json) -> tuple[str, ...]:
    guest, claim = instance["guest"], instance["claim"]
    held = summed(claim["allocations"]) if claim else guest["resources"]
    return (
        instance["uuid"],
        instance["name"] or "-",
        guest["state"] if guest else "none",
        (claim["state"] + (", adopted" if claim["adopted"] else "")) if claim else "UNCLAIMED",
        resources_text(held),
    )


def summed(allocations: Mapping[str, Json]) -> dict[str, int]:
    total: dict[str, int] = {}
    for held in allocations.values():
        for name, amount in held["resources"].items():
            total[name] = total.get(name, 0) + amount
    return total


def resources_text(resources: Mapping[str, int]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted(resources.items())) or "-"


def holdings_lines(holder: Json, names: Mapping[str, str]) -> Iterator[str]:
    """What a claim (or an explanation that fits) holds where; `names` are providers' names by uuid."""
    rows = [
        (
            names.get(provider, provider),
            name,
            amount,
            ",".join(holder["units"].get(provider, {}).get(name, ())) or "-",
        )
        for provider, held in holder["allocations"].items()
        for name, amount in held["resources"].items()
    ]
    yield from table(("PROVIDER", "RESOURCE CLASS", "AMOUNT", "UNITS"), sorted(rows))
    yield from cells_lines(holder)
    yield from makings_lines(holder)


def makings_lines(holder: Json) -> Iterator[str]:
    """The units that did not exist when they were chosen."""
    rows = [(unit, each["type"], each["parent"]) for unit, each in holder.get("to_make", {}).items()]
    if rows:
        yield from table(("TO MAKE", "TYPE", "ON"), rows)


def cells_lines(holder: Json) -> Iterator[str]:
    """The guest's NUMA cells, if it has any."""
    if holder.get("cells"):
        yield from table(CELL_HEADINGS, list(cell_rows(holder["cells"])))


def explanation_lines(explanation: Json, providers: Mapping[str, Json]) -> Iterator[str]:
    """Resource by resource: what was asked, what is free, on which provider, and the verdict."""
    rows: list[tuple[object, ...]] = []
    for uuid, held in explanation["allocations"].items():
        provider = providers.get(uuid)
        for name, amount in held["resources"].items():
            rows.append((name, amount, free(provider, name), provider["name"] if provider else uuid, "fits"))
    short_of = {short["resource_class"] for short in explanation["shortfalls"]}
    if not explanation["fits"]:
        for name, amount in explanation["asked"].items():
            if name not in short_of:
                best = max(providers.values(), key=lambda provider: free(provider, name) or 0, default=None)
                rows.append((name, amount, free(best, name), best["name"] if best else "-", "would fit"))
    for short in explanation["shortfalls"]:
        verdict = f"short: {short['reason']}"
        rows.append(
            (short["resource_class"], short["asked"], short["free"], short["provider"] or "-", verdict)
        )
    yield "it fits" if explanation["fits"] else "it does not fit"
    yield from table(("RESOURCE CLASS", "ASKED", "FREE", "PROVIDER", "VERDICT"), rows)
    yield from cells_lines(explanation)
    yield from makings_lines(explanation)


def free(provider: Json | None, name: str) -> int:
    """What a provider could still give of a class; never below 0."""
    if provider is None or name not in provider["inventories"]:
        return 0
    return max(int(provider["inventories"][name]["capacity"]) - int(provider["usages"].get(name, 0)), 0)


def settings_lines(groups: Mapping[str, Mapping[str, Json]]) -> Iterator[str]:
    rows = [
        (f"[{group}]", option, _value(told["value"]), told["origin"])
        for group, options in groups.items()
        for option, told in options.items()
    ]
    yield from table(("GROUP", "OPTION", "VALUE", "ORIGIN"), rows)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(part) for part in value) or "-"
    return "-" if value is None or value == "" else str(value)


CELL_HEADINGS = ("GUEST CELL", "HOST CELL", "PINNED CPUS", "SHARED CPUS", "WITHHELD", "MEMORY_MB", "PAGE_KIB")


def cell_rows(cells: Sequence[Json]) -> Iterator[tuple[object, ...]]:
    """A row for each; pinned as guest CPU->host CPU."""
    for cell in cells:
        pinned = ",".join(f"{cpu}->{pin}" for cpu, pin in cell["pinned_cpus"].items())
        yield (
            cell["cell"],
            cell["host_cell"],
            pinned or "-",
            ",".join(map(str, cell["shared_cpus"])) or "-",
            ",".join(map(str, cell["withheld_cpus"])) or "-",
            cell["memory_mb"],
            cell["page_kib"],
        )

"""Amounts as people write them: `memory_mb=8GiB`, `DISK_GB=1T`, `NET_BW_EGR_KILOBIT_PER_SEC=5Gbit`. Pure."""

import re
from collections.abc import Mapping
from fractions import Fraction

from agent.errors import UsageError

_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([A-Za-z]*)", re.ASCII)
_NEGATIVE = re.compile(r"-[0-9].*", re.ASCII)
_HUGE = re.compile(r"[0-9]{19,}.*", re.ASCII)
_BINARY_PREFIXES = "KMGT"
_BYTES = {
    unit: 1024 ** (power + 1)
    for power, prefix in enumerate(_BINARY_PREFIXES)
    for unit in (prefix.lower(), f"{prefix}iB".lower())
}
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_UNCLEAR = {f"{prefix}b".lower(): f"{prefix}iB" for prefix in _BINARY_PREFIXES}

_Scale = tuple[str, int, Mapping[str, int]]
"""What the class is counted in, in bytes or bits, and {unit that people may write: its size}."""

_MIB: _Scale = ("MiB", 1024**2, _BYTES)
_GIB: _Scale = ("GiB", 1024**3, _BYTES)
_KILOBIT: _Scale = ("kbit", 10**3, _BITS)
_SCALES: Mapping[str, _Scale] = {
    "memory_mb": _MIB,
    "MEMORY_MB": _MIB,
    "disk_gb": _GIB,
    "DISK_GB": _GIB,
    "NET_BW_EGR_KILOBIT_PER_SEC": _KILOBIT,
    "NET_BW_IGR_KILOBIT_PER_SEC": _KILOBIT,
}


def parse_amounts(option: str, text: str) -> dict[str, int]:
    """{name: amount} of `NAME=N,NAME=N`, each in the unit of its class; N may have a unit of its own.

    `option` is for errors. Raises UsageError.
    """
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name in amounts:
            raise UsageError(f"{option} {text!r} names {name} twice")
        amounts[name] = _whole_amount(f"{option} {text!r}", part, name, number.strip())
    return amounts


def _whole_amount(where: str, part: str, name: str, number: str) -> int:
    match = _AMOUNT.fullmatch(number)
    if name and _NEGATIVE.fullmatch(number):
        raise UsageError(f"{where}: {name} cannot be negative: give 1 or more")
    if name and _HUGE.fullmatch(number):
        from agent.tree import MAX_UNIT

        raise UsageError(f"{where}: {name} has more digits than any amount: at most {MAX_UNIT} is possible")
    if not name or not match:
        raise UsageError(f"{where} is not NAME=N,...: {part!r} has no whole number")
    value, unit = Fraction(match[1]), match[2]
    scale = _SCALES.get(name)
    if unit:
        value = _in_base_unit(where, name, number, value, unit, scale)
    if value.denominator != 1:
        base = scale[0] if scale else "units"
        raise UsageError(
            f"{where}: {name} is counted in whole {base}, and {number} is not a whole number of them"
        )
    return int(value)


def _in_base_unit(
    where: str, name: str, number: str, value: Fraction, unit: str, scale: _Scale | None
) -> Fraction:
    if scale is None:
        raise UsageError(f"{where}: {name} is a count, so {number!r} can have no unit")
    base, size, units = scale
    if unit.lower() in _UNCLEAR and units is _BYTES:
        meant = _UNCLEAR[unit.lower()]
        raise UsageError(
            f"{where}: {unit} may mean powers of 1000 or of 1024; write {meant} for powers of 1024"
        )
    if unit.lower() not in units:
        known = ", ".join(("K, M, G, T", "KiB to TiB") if units is _BYTES else ("kbit", "Mbit", "Gbit"))
        raise UsageError(f"{where}: {unit!r} is no unit of {name}; it is counted in {base}, or write {known}")
    return value * units[unit.lower()] / size

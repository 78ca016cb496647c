"""Parse [DEFAULT] reserved_huge_pages, in nova's form: node:0,size:2048,count:64. Pure."""

import re
from collections.abc import Iterable

from agent.driver import ReservedPages
from agent.errors import SettingsError

_KIB_PER = {"": 1, "k": 1, "m": 1 << 10, "g": 1 << 20}
_SIZE = re.compile(r"([0-9]{1,9})\s*([kmg]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


def parse_reserved_pages(texts: Iterable[str]) -> tuple[ReservedPages, ...]:
    """The pages of the option's texts; blank ones are ignored. Raises SettingsError."""
    return tuple(_parse(text) for text in texts if text.strip())


def _parse(text: str) -> ReservedPages:
    parts = dict(part.strip().split(":", 1) for part in text.split(",") if ":" in part)
    size = _SIZE.fullmatch(parts.get("size", "").strip())
    node, count = (parts.get(key, "").strip() for key in ("node", "count"))
    is_whole = all(re.fullmatch("[0-9]{1,9}", number) for number in (node, count))
    if parts.keys() != {"node", "size", "count"} or size is None or not is_whole:
        raise SettingsError(
            f"[DEFAULT] reserved_huge_pages = {text} is not node:N,size:SIZE,count:N, such as "
            "node:0,size:2048,count:64 (the size in KiB, or as 1GB).",
            group="DEFAULT",
            option="reserved_huge_pages",
        )
    return ReservedPages(int(node), int(size[1]) * _KIB_PER[size[2].lower()], int(count))

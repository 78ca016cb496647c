"""Build what is made out of the documents and the program: the guide, the man pages, the completions.

python docs/build.py OUT        OUT/html, OUT/man, OUT/completion; a warning is an error
python docs/build.py --pages    write docs/configuration.md anew, after an option changed
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent.cli.parser import build as build_parser
from agent.config.options import all_options, allowed, driver_classes, is_pattern

DOCS = Path(__file__).parent
SHELLS = {"bash": "plimsoll", "zsh": "_plimsoll", "tcsh": "plimsoll.csh"}

HEAD = """# Configuration

The agent reads `/etc/plimsoll/plimsoll.conf`, then `/etc/plimsoll/conf.d/*.conf` by name; what comes later
wins. The environment goes above both: `OS_<GROUP>__<OPTION>`. A secret is taken from a file of mode 0600, or
from the service manager's credential `<group>.<option>`, and from nowhere else.

An option that is not here, or a value that is not allowed, is refused with its file. `systemctl reload
plimsoll-agent` reads all of it again. Where anything is wrong the running settings stay in force; the log and
`systemctl status plimsoll-agent` say what it is.

`plimsoll config show` says each value and where it comes from, `plimsoll config validate` checks files,
`plimsoll config sample` prints a file with every option, and `plimsoll init` proposes one for the host.
"""


def configuration_page() -> str:
    """Every option, from the program itself."""
    parts = [HEAD]
    for group, options in all_options(driver_classes()[0]).items():
        parts.append(f"\n## [{group}]\n")
        if is_pattern(group):
            parts.append("\nOne such group for each type.\n")
        parts.extend(_option(each) for each in options)
    return "".join(parts)


def _option(option: Any) -> str:
    default = option.sample_default if option.sample_default is not None else option.default
    choices = getattr(option.type, "choices", None) or {}
    lines = [f"\n**{option.dest}**", f": {option.help}"]
    if any(choices.values()):
        lines.extend(f"  `{choice}`: {meaning}." for choice, meaning in choices.items())
    elif allowed(option) != "text":
        lines.append(f"  Allowed: {allowed(option)}.")
    lines.append(f"  Default: {_shown(default)}.")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    if default is None or default == []:
        return "not set"
    if isinstance(default, list):
        return f"`{','.join(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def completions(out: Path) -> None:
    import shtab

    out.mkdir(parents=True, exist_ok=True)
    for shell, name in SHELLS.items():
        (out / name).write_text(shtab.complete(build_parser(), shell=shell), encoding="utf-8")


def sphinx(builder: str, out: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", builder]
    subprocess.run([*command, "-d", str(out.parent / ".doctrees"), str(DOCS), str(out)], check=True)


def left_aligned(folder: Path) -> None:
    """Man pages whose tables have narrow columns: to stretch their lines is ugly, and troff warns of it.

    Links between the guide's pages have no address there, only empty brackets, which go.
    """
    for page in folder.iterdir():
        text = re.sub(r" \\%<(#[^>]*)?>", "", page.read_text("utf-8"))
        page.write_text(re.sub(r"^(\.TH .*)$", r"\1\n.ad l", text, count=1, flags=re.MULTILINE), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT")
    parser.add_argument("--pages", action="store_true")
    args = parser.parse_args()
    if args.pages:
        (DOCS / "configuration.md").write_text(configuration_page(), encoding="utf-8")
        return 0
    if args.out is None:
        parser.error("OUT or --pages is missing")
    completions(args.out / "completion")
    sphinx("html", args.out / "html")
    sphinx("man", args.out / "man")
    left_aligned(args.out / "man")
    print(f"built: {args.out}/html/index.html, {args.out}/man, {args.out}/completion")
    return 0


if __name__ == "__main__":
    sys.exit(main())

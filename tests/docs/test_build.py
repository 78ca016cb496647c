"""The operator's guide: whole, without a warning, and of this very program."""

import importlib
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

import agent
from agent.audit.findings import FINDING_KINDS
from agent.daemon.service_install import SETTINGS_FILE
from agent.driver import ENTRY_POINT_GROUP
from agent.errors import PlimsollError

DOCS = CHECKOUT / "docs"
BUILD = [sys.executable, str(DOCS / "build.py")]


def kinds(kind: type[PlimsollError] = PlimsollError) -> Iterator[type[PlimsollError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


def spelt() -> Iterator[str]:
    """Codes that stand in the code as such, those with HTTP's number among them."""
    for file in Path(agent.__file__).parent.rglob("*.py"):
        for code in re.findall(r'"(plimsoll\.[a-z_.]+(?:\{\w+\})?)[" ]', file.read_text("utf-8")):
            yield re.sub(r"\{.*", "NUMBER", code)


def test_every_error_code_has_an_entry_and_every_entry_is_one() -> None:
    for module in pkgutil.walk_packages(agent.__path__, "agent."):
        importlib.import_module(module.name)
    codes = {kind.code for kind in kinds() if kind.__module__.startswith("agent.")}
    codes |= set(spelt()) - {ENTRY_POINT_GROUP, SETTINGS_FILE}
    lines = (DOCS / "troubleshooting.md").read_text("utf-8").splitlines()
    assert sorted(codes) == sorted(line.removeprefix("### ") for line in lines if line.startswith("### "))


def test_each_generated_file_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    for path, content in importlib.import_module("build").generated_files().items():
        assert content == path.read_text("utf-8"), f"{path.name}: run `./dev generate`"


def test_the_page_of_the_audit_has_a_row_of_each_finding() -> None:
    page = (DOCS / "audit.md").read_text("utf-8")
    for kind in FINDING_KINDS:
        assert page.count(f"\n| {kind.name} |") == len(kind.rows)


@pytest.mark.slow
def test_the_guide_the_man_pages_and_the_completions_build_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([*BUILD, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = (tmp_path / "html" / "index.html").read_text("utf-8")
    assert "https://" not in html.replace("https://www.sphinx-doc.org", "").replace("https://alabaster", "")
    assert ".TH" in (tmp_path / "man" / "plimsoll.1").read_text("utf-8")
    assert "VCPU" in (tmp_path / "man" / "plimsoll.conf.5").read_text("utf-8")
    for page in (tmp_path / "man").iterdir():
        assert warnings(page) == ""
        assert "<>" not in page.read_text("utf-8"), "an address that is empty on paper"
    assert completed(tmp_path / "completion" / "plimsoll", "move", "") == "begin confirm revert show list"
    assert completed(tmp_path / "completion" / "plimsoll", "history", "--si") == "--since"


def warnings(page: Path) -> str:
    """What `man` says of a page, nothing where there is no `man`."""
    if shutil.which("man") is None:
        return ""
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr


def completed(script: Path, *words: str) -> str:
    """What bash offers after `plimsoll WORDS`."""
    spelt = " ".join(map(shlex.quote, ("plimsoll", *words)))
    asked = (
        f"source {script}; COMP_WORDS=({spelt}); COMP_CWORD={len(words)}; "
        f'_shtab_plimsoll plimsoll {shlex.quote(words[-1])} x; echo "${{COMPREPLY[*]}}"'
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()

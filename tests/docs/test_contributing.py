"""The pages for those who change the code: each path, name, module and command of theirs exists."""

import re
from pathlib import Path

import pytest
from kits import structure
from kits.paths import CHECKOUT, DOCS

CONTRIBUTING, ARCHITECTURE = CHECKOUT / "CONTRIBUTING.md", DOCS / "architecture.md"
PAGES = (CONTRIBUTING, ARCHITECTURE, *sorted((DOCS / "decisions").glob("0*.md")))
FOLDERS = ("agent", "benchmarks", "debian", "docs", "drivers", "etc", "plimsoll", "systemd", "tests")
FILES = {
    f"/{path.relative_to(CHECKOUT).as_posix()}": path
    for below in (CHECKOUT.glob("*"), *((CHECKOUT / folder).rglob("*") for folder in FOLDERS))
    for path in below
}
ROOTS = {*FOLDERS, *(path.name for path in (CHECKOUT / "agent").iterdir() if path.is_dir())}
SOURCE = {path: path.read_text(encoding="utf-8") for path in FILES.values() if path.suffix == ".py"}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def spans(page: Path) -> set[str]:
    """What the page sets as code in its sentences, without the names that the reader is to choose (NAME)."""
    return {text for text in re.findall(r"`([^`\n]+)`", page.read_text("utf-8")) if "NAME" not in text}


def at(end: str) -> list[Path]:
    """The files and folders of the checkout whose paths end so."""
    return [path for name, path in FILES.items() if name.endswith(f"/{end.rstrip('/')}")]


@each_page
def test_each_path_and_each_module_exists(page: Path) -> None:
    paths = (text for text in spans(page) if re.fullmatch(r"[\w./-]+\.py|\w+/[\w./-]*", text))
    assert [path for path in paths if path.partition("/")[0] in ROOTS | {path} and not at(path)] == []
    modules = (re.fullmatch(r"(agent(?:\.[a-z_]+)+)(?:\.[A-Z]\w*)?", text) for text in spans(page))
    ends = [
        found[1].replace(".", "/") for found in modules if found and not found[1].endswith((".py", ".db"))
    ]
    assert [end for end in ends if not at(end) and not at(f"{end}.py")] == []


@each_page
def test_each_name_is_in_the_file_that_is_named_with_it(page: Path) -> None:
    for name, path in re.findall(r"`([\w.]+)`,? (?:in |\()`([\w./-]+\.py)`", page.read_text("utf-8")):
        word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
        assert any(word.search(SOURCE[file]) for file in at(path)), f"{name} in {path}"


@pytest.mark.parametrize("page", [CONTRIBUTING, ARCHITECTURE], ids=lambda page: page.stem)
def test_each_name_of_the_code_is_in_the_code(page: Path) -> None:
    known = {word for text in (*SOURCE.values(), *FILES) for word in re.findall(r"\w+", text)}
    names = {word for text in spans(page) for word in re.findall(r"[A-Za-z_]\w*", text)}
    assert {name for name in names if re.search("_|[a-z][A-Z]", name)} <= known


@each_page
def test_each_command_of_dev_exists(page: Path) -> None:
    known = re.findall(r"^ {4}([a-z-]+)\) ", (CHECKOUT / "dev").read_text("utf-8"), re.MULTILINE)
    assert {text.split()[1] for text in spans(page) if re.match(r"\./dev [a-z]", text)} <= {*known}


def test_the_map_has_each_folder_at_its_layer() -> None:
    rows = re.findall(r"^\| *(\d*) *\| (`agent/\w.*?) \|", CONTRIBUTING.read_text("utf-8"), re.MULTILINE)
    layers: dict[int, list[str]] = {}
    for number, folders in rows:  # a row without a number is of the layer above it
        layer = layers.setdefault(int(number or min(layers)), [])
        layer += (f"agent.{folder}" for folder in re.findall(r"`agent/(\w+)`", folders))
    assert layers == dict(enumerate(structure.layers()[-2::-1], 1))

"""The layers, as import-linter's contracts cannot say them, and what each module owes to a newcomer."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from kits import structure
from kits.paths import CHECKOUT
from kits.structure import GROUND

LOOSE_MODULES_MAX = 12
FUNCTION_P95_MAX = 40
TOP_LEVEL = {
    *(".ci", ".editorconfig", ".gitignore", "agent", "benchmarks", "debian", "dev", "docs", "drivers", "etc"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "constraints.txt"),
    *("plimsoll", "pyproject.toml", "setup.py", "systemd", "tests"),
}


@pytest.mark.skipif(
    not shutil.which("git") or not (CHECKOUT / ".git").exists(),
    reason="git knows what is committed, and this is no checkout of it",
)
def test_the_top_level_has_only_what_belongs_there() -> None:
    """A command that leaves files behind in a checkout adds them to no commit."""
    git = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT), "ls-files"]
    listed = subprocess.run(git, check=True, capture_output=True, text=True).stdout
    assert {line.partition("/")[0] for line in listed.splitlines()} == TOP_LEVEL


def test_every_folder_has_its_layer() -> None:
    named = {folder for layer in structure.layers() for folder in layer}
    folders = {module.folder for module in structure.modules().values() if module.name.startswith("agent")}
    assert named == folders


def test_no_import_runs_upwards_and_the_ground_imports_no_folder() -> None:
    assert structure.upward_imports() == []


def test_no_two_folders_and_no_modules_import_each_other() -> None:
    assert structure.mutual_folders() == []
    assert structure.circles() == []


def test_few_modules_lie_directly_in_the_agent() -> None:
    loose = [module for module in structure.modules().values() if module.folder == GROUND]
    assert len([module for module in loose if module.name.startswith("agent.")]) <= LOOSE_MODULES_MAX


def test_functions_are_short() -> None:
    lengths = structure.function_lengths()
    assert lengths[len(lengths) * 95 // 100] <= FUNCTION_P95_MAX


def test_every_public_name_is_documented() -> None:
    assert structure.documentation().missing == ()


def test_every_module_is_known_to_a_test() -> None:
    assert structure.untested_modules() == []

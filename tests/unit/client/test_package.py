"""The package alone: what it imports, its version, and that it has a method for each operation of the API."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

import agent
import plimsoll
from agent.api.routes import ROUTES

HEAVY = {"asyncio", "http", "inspect", "subprocess", "tempfile", "urllib.request", "plimsoll.shapes", "agent"}


def test_the_import_is_cheap() -> None:
    program = "import sys; old = set(sys.modules); import plimsoll; print(*sorted(set(sys.modules) - old))"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); {program}",
    ]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    own = [name for name in loaded if name.partition(".")[0] == "plimsoll"]
    others = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert not HEAVY & set(loaded) and others == own
    assert len(loaded) < 90


def test_the_version_is_that_of_the_agent() -> None:
    assert plimsoll.__version__ == agent.__version__


@pytest.mark.parametrize("kind", [plimsoll.Agent, plimsoll.AsyncAgent])
def test_there_is_a_method_for_each_operation(kind: type[plimsoll.Agent]) -> None:
    for route in ROUTES:
        method = getattr(kind, route.function.__name__)
        assert "timeout" in inspect.signature(method).parameters, method
        assert inspect.iscoroutinefunction(method) is (kind is plimsoll.AsyncAgent)


def test_every_public_name_is_documented() -> None:
    for name in plimsoll.__all__:
        thing = getattr(plimsoll, name)
        if inspect.isclass(thing):
            public = {key: value for key, value in vars(thing).items() if key[:1] != "_" and callable(value)}
            assert thing.__doc__ and all(value.__doc__ for value in public.values()), name


@pytest.mark.slow
def test_it_installs_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    command = ["cp", "-r", str(CHECKOUT / "plimsoll"), str(source)]  # setuptools writes beside the source
    subprocess.run(command, check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), str(source)], check=True, capture_output=True)
    site = str(tmp_path / "site")
    program = f"import sys; sys.path.insert(0, {site!r}); import plimsoll.shapes as s; print(s.__file__)"
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True
    )
    assert out.stdout.strip() == str(tmp_path / "site" / "plimsoll" / "shapes.py")
    assert (tmp_path / "site" / "plimsoll" / "py.typed").exists()

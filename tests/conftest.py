"""What many tests start from: the placements that they run on."""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kits.examples import examples
from kits.placements import DATABASE, REMOTE_TOO, Embedded, OpenStack, Placement
from kits.tracker import fast_directory

# How long an example takes says how busy the machine is; the tests have time limits of their own.
settings.register_profile(
    "plimsoll", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("plimsoll")

# What is printed must not depend on the time zone of the machine.
os.environ["TZ"] = "UTC"
time.tzset()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's jobs in the background ignore Ctrl-C, and so would the commands that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What a test made of the process's logging, by running a daemon in it, ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def openstack() -> Iterator[OpenStack]:
    """A real OpenStack Placement for the whole session; whoever pulls it down puts it up again."""
    pytest.importorskip("placement", reason="the real Placement is installed with the test extra")
    with fast_directory() as directory:
        running = OpenStack.configured(Path(directory))
        yield running
        running.down()


@pytest.fixture(params=["embedded", "openstack"])
def placement(request: pytest.FixtureRequest, tmp_path: Path) -> Placement:
    """An empty placement, once each kind: the same test must pass on both."""
    return _empty(request, tmp_path)


@pytest.fixture(params=["embedded", pytest.param("openstack", marks=pytest.mark.remote)])
def any_placement(request: pytest.FixtureRequest, tmp_path: Path) -> Placement:
    """The same for tests that take minutes on the real one: `./dev test-remote` runs them there, too."""
    return _empty(request, tmp_path)


def _empty(request: pytest.FixtureRequest, tmp_path: Path) -> Placement:
    if request.param == "embedded":
        return Embedded(tmp_path)
    running: OpenStack = request.getfixturevalue("openstack")
    running.empty()
    return running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for variable, mark, reason in (
        ("PLIMSOLL_TEST_BROWSER", "browser", "./dev test-seeing runs it in Chromium"),
        ("PLIMSOLL_TEST_COLLECTIONS", "ansible", "./dev test-ansible runs it with ansible-core"),
    ):
        for item in items:
            if mark in item.keywords and not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=reason))
    if os.environ.get(DATABASE, "").startswith("postgresql"):
        for item in items:
            counts = "counts_migrations" in item.keywords or "heal an orphan" in item.name
            if counts and "openstack" in item.name:
                item.add_marker(pytest.mark.skip(reason="Placement counts no types over PostgreSQL"))
    if os.environ.get(REMOTE_TOO):
        return
    _keep_first_variants(items)
    for item in items:
        if "remote" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="./dev test-remote runs it on OpenStack Placement"))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: it need not be looked through again and again for garbage."""
    gc.collect()
    gc.freeze()


EACH_ON_BOTH = "functional/placement"
"""The folder of the tests that say what a placement is: `./dev test` runs all of them on the real one."""
ONE_OF = 3
"""Of the functions of each other file `./dev test` runs one in three there, in the first of its variants."""


def _keep_first_variants(items: list[pytest.Item]) -> None:
    """Mark as remote what `./dev test` runs on the embedded core alone, outside `EACH_ON_BOTH`.

    That is two of three functions, and all but the first variant of the others.
    """
    seen: dict[Path, set[object]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.callspec.params.get("placement") != "openstack" or EACH_ON_BOTH in item.path.as_posix():
            continue
        functions = seen.setdefault(item.path, set())
        is_first = item.function not in functions
        functions.add(item.function)
        if not is_first or (len(functions) - 1) % ONE_OF:
            item.add_marker(pytest.mark.remote)

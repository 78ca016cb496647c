"""`plimsoll devices plan`, `apply` and `assert`: what a boot took from cards, without the agent."""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, settings_paths
from agent.cli.terminal import plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.carving.carver import Carved, Carver, CarvingJournal
    from agent.carving.plan import Plan, Step
    from agent.cli.grammar import CommandAdder

ROOT = Path("/")
ROUNDS_MAX = 10
"""How often `apply` begins again because the agent wrote another plan file meanwhile."""


def add_carving_verbs(add_verb: CommandAdder) -> None:
    """Add the verbs of `plimsoll devices` that compare the host's cards with their carving."""
    planning = add_verb(
        "plan",
        plan,
        "show what `apply` would do to the host's cards",
        "Compares what the kernel shows with [devices] sriov_vfs, driver_overrides and vgpu_types, and with\n"
        "the devices that claims and domains have. Ends with 3 if there is something to do, and with 5 if\n"
        "something is refused.",
        "  plimsoll devices plan",
    )
    applying = add_verb(
        "apply",
        apply,
        "make the virtual functions, drivers, vGPU types and mediated devices that a boot took away",
        "Needs root; plimsoll-devices.service runs it at each boot, before libvirt starts guests, and\n"
        "plimsoll-mixed-vgpus.service with --mixed-size after each claim and release. What is there already\n"
        "stays. A number of virtual functions does not change while one of them is in use.",
        "  plimsoll devices apply --dry-run\n  plimsoll devices apply",
    )
    applying.add_argument(
        "--dry-run",
        action="store_true",
        default=SUPPRESS,  # else it would take back the --dry-run before the verb
        help="the same as `plimsoll devices plan`",
    )
    asserting = add_verb(
        "assert",
        assert_carving,
        "end with 3 if the host's cards are not as they are to be after a boot",
        "Shows what differs, as `plimsoll devices plan` does, and changes nothing.",
        "  plimsoll devices assert",
    )
    for command in (planning, applying, asserting):
        _add_options(command)


def _add_options(command: ArgumentParser) -> None:
    add_settings_options(command)
    command.add_argument(
        "--mixed-size",
        action="store_true",
        help="only the vGPUs of the cards in [devices] mixed_size_cards, as claims and domains need them",
    )
    command.add_argument(
        "--root", metavar="DIR", type=Path, default=ROOT, help="use DIR/sys and DIR/run instead of the host's"
    )


def plan(args: Namespace) -> ExitCode:
    """Show what is to be done."""
    found = _show(args)
    if found.refusals:
        return ExitCode.REFUSED
    return ExitCode.DRIFT_FOUND if found.steps else ExitCode.DONE


def assert_carving(args: Namespace) -> ExitCode:
    """Tell whether there is nothing to be done."""
    found = _show(args)
    return ExitCode.DRIFT_FOUND if found.steps or found.refusals else ExitCode.DONE


def apply(args: Namespace) -> ExitCode:
    """Do what is to be done."""
    if args.dry_run:
        return plan(args)
    shows = args.output == "table"
    carved = _carve(args, lambda step: print(plain(step.text), flush=True) if shows else None)
    answer = {
        "steps": _steps(carved.steps),
        "failures": list(carved.failures),
        "refusals": list(carved.refusals),
    }
    Output(args.output).show(answer, lambda _: _end(carved.steps, (*carved.failures, *carved.refusals)))
    if carved.failures:
        return ExitCode.FAILED
    return ExitCode.REFUSED if carved.refusals else ExitCode.DONE


def _carve(args: Namespace, on_step: Callable[[Step], None]) -> Carved:
    """Carve until the agent's file asks for what the last round made."""
    from agent.carving.carver import Carved

    steps: tuple[Step, ...] = ()
    with _journal(args).alone():
        carver = _carver(args)
        for _ in range(ROUNDS_MAX):
            last = carver.carve(on_step)
            steps += last.steps
            needed, carver = carver.needed, _carver(args)
            if carver.needed == needed:
                break
    return Carved(steps, last.failures, last.refusals)


def _show(args: Namespace) -> Plan:
    found = _carver(args).look()
    answer = {"steps": _steps(found.steps), "refusals": list(found.refusals)}
    lines = [*(step.text for step in found.steps), *_end(found.steps, found.refusals)]
    Output(args.output).show(answer, lambda _: map(plain, lines))
    return found


def _end(steps: Iterable[Step], sentences: Iterable[str]) -> Iterator[str]:
    problems = [f"not done: {plain(sentence)}" for sentence in sentences]
    yield from problems
    if not problems and not tuple(steps):
        yield "nothing to do"


def _steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    return [{**step.to_json(), "text": step.text} for step in steps]


def _journal(args: Namespace) -> CarvingJournal:
    from agent.carving.carver import FILE, CarvingJournal

    return CarvingJournal(args.root / FILE)


def _carver(args: Namespace) -> Carver:
    from agent.carving.carver import Carver
    from agent.carving.files import check_owners, read_plan_file
    from agent.carving.kernel import Kernel
    from agent.config.options import driver_class
    from agent.config.settings import load_driver

    choice = load_driver(*settings_paths(args))
    if os.geteuid() == 0:
        check_owners(choice.origins)
    declared = driver_class(choice.compute_driver).declared_carving(choice.driver)
    folder = choice.driver.state_path
    needed = () if folder is None or not folder.is_dir() else read_plan_file(folder)
    kernel = Kernel(args.root / "sys", proc=args.root / "proc")
    return Carver(kernel, _journal(args), declared, needed, args.mixed_size)

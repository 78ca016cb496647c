"""`plimsoll cpus`: the power of dedicated CPUs, without the agent."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from agent.cli.carve import ROOT
from agent.cli.grammar import add_verbs
from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, settings_paths
from agent.cli.terminal import plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.carving.cpu_power import CpuPower
    from agent.carving.cpus import CpuStep
    from agent.cli.grammar import CommandAdder


def add_cpus_command(add: CommandAdder) -> None:
    """Add `plimsoll cpus`."""
    command = add(
        "cpus",
        None,
        "bring dedicated CPUs up for claims, and down at a boot",
        "With [compute] cpu_power_management, dedicated CPUs that no guest uses may be down: offline, or\n"
        "with the governor cpu_power_governor_low. Without it there is nothing to do.",
        "  plimsoll cpus plan\n  plimsoll cpus apply",
    )
    add_verb = add_verbs(command)
    planning = add_verb(
        "plan",
        plan,
        "show what `apply` would do to the dedicated CPUs",
        "Compares what the kernel shows with the CPUs that claims and guests have. Ends with 3 if there is\n"
        "something to do.",
        "  plimsoll cpus plan",
    )
    applying = add_verb(
        "apply",
        apply,
        "bring the CPUs of claims up, and before libvirt has started, those of no instance down",
        "Needs root; plimsoll-cpus.service runs it at each boot before libvirt starts guests, and after\n"
        "each claim of dedicated CPUs. Where libvirt runs, no CPU goes down: a guest may be starting on it.",
        "  plimsoll cpus apply",
    )
    for verb in (planning, applying):
        _add_options(verb)


def _add_options(command: ArgumentParser) -> None:
    from pathlib import Path

    add_settings_options(command)
    command.add_argument(
        "--root", metavar="DIR", type=Path, default=ROOT, help="use DIR/sys and DIR/run instead of the host's"
    )


def plan(args: Namespace) -> ExitCode:
    """Show what is to be done."""
    steps = _power(args).look()
    Output(args.output).show({"steps": _steps(steps)}, lambda _: _lines((), steps, ()))
    return ExitCode.DRIFT_FOUND if steps else ExitCode.DONE


def apply(args: Namespace) -> ExitCode:
    """Do what is to be done."""
    shows = args.output == "table"
    steps, failures = _power(args).apply(lambda step: print(plain(step.text), flush=True) if shows else None)
    answer = {"steps": _steps(steps), "failures": list(failures)}
    Output(args.output).show(answer, lambda _: _lines(steps, (), failures))
    return ExitCode.FAILED if failures else ExitCode.DONE


def _lines(taken: Iterable[CpuStep], steps: Iterable[CpuStep], failures: Iterable[str]) -> Iterator[str]:
    found = [step.text for step in steps] + [f"not done: {plain(sentence)}" for sentence in failures]
    yield from found
    if not found and not tuple(taken):
        yield "nothing to do"


def _steps(steps: Iterable[CpuStep]) -> list[dict[str, Any]]:
    return [{"cpu": step.cpu, "state": step.state, "text": step.text} for step in steps]


def _power(args: Namespace) -> CpuPower:
    from agent.carving.cpu_power import CpuKernel, CpuPower
    from agent.config.settings import load_driver

    choice = load_driver(*settings_paths(args))
    return CpuPower(CpuKernel(args.root), choice.driver.host_settings, choice.driver.state_path)

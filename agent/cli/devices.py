"""`plimsoll devices` and `plimsoll cpus`: what guests can have, and what is made again after a boot.

The verbs `plan`, `apply` and `assert` work without the agent: they compare the host's cards and CPUs with
the settings, claims and domains, and make again what a boot took away.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.client import client_of
from agent.cli.grammar import CommandAdder, add_column_option, add_settings_options, add_verbs, settings_paths
from agent.cli.output import show, show_table
from agent.errors import ExitCode, UsageError, plain

if TYPE_CHECKING:
    from agent.api.shapes.host import CordonShape, DevicesShape
    from agent.carving.carver import Carver, CarvingJournal, CpuPower
    from agent.carving.carving import Plan, Step
    from agent.carving.cpus import CpuStep

ROOT = Path("/")
ROUNDS_MAX = 10
"""How often `apply` begins again because the agent wrote another plan file meanwhile."""


def add_devices_command(add: CommandAdder) -> None:
    """Add `plimsoll devices`."""
    command = add(
        "devices",
        dry_run,
        "list the devices for guests, keep some from them, and make again what a boot took away",
        "The agent offers a device that is not well to no guest and no scheduler until it is well again; an\n"
        "operator can cordon one. A guest that has such a device keeps it.",
        '  plimsoll devices list\n  plimsoll devices cordon 0000:41:10.2 --reason "loses its link"\n'
        "  plimsoll devices clear 0000:41:10.2\n  plimsoll devices --dry-run",
    )
    command.add_argument("--dry-run", action="store_true", help="the same as `plimsoll devices plan`")
    command.set_defaults(missing=command, config_file=None, config_dir=None, root=ROOT, mixed_size=False)
    add_verb = add_verbs(command)
    listing = add_verb(
        "list",
        list_devices,
        "list the devices, who has each, and which are withheld",
        "CPUs are not listed; `plimsoll tree` shows them.",
        "  plimsoll devices list\n  plimsoll devices list -o csv -c device -c holder",
    )
    add_column_option(listing)
    cordoning = add_verb(
        "cordon",
        cordon,
        "give a device to no guest, until `plimsoll devices clear`",
        "A guest that has the device keeps it. The cordon is kept over restarts of the agent. The address\n"
        "of a card stands for all that the card offers.",
        '  plimsoll devices cordon 0000:83:00.0 --reason "fell off the bus twice"',
    )
    cordoning.add_argument(
        "address", metavar="ADDRESS", help="a PCI address, or the uuid of a mediated device"
    )
    cordoning.add_argument("--reason", default="", help="why, for `plimsoll status`")
    clearing = add_verb(
        "clear",
        clear,
        "give a device to guests again",
        "Ends the cordon of this address. A device that is unhealthy is offered in spite of the symptoms\n"
        "that it shows now; one that comes later counts again.",
        "  plimsoll devices clear 0000:83:00.0",
    )
    clearing.add_argument("address", metavar="ADDRESS", help="the address that is cordoned or unhealthy")
    _add_carving_verbs(add_verb)


def dry_run(args: Namespace) -> ExitCode:
    """Show what `plimsoll devices apply` would do; without --dry-run, a verb is missing."""
    if not args.dry_run:
        args.missing.error("a command is missing")
    return plan_cards(args)


def list_devices(args: Namespace) -> ExitCode:
    """List the devices of the host."""
    from agent.api.shapes.host import DEVICE_COLUMNS

    answer: DevicesShape = client_of(args).get("/v1/devices")
    show_table(args, answer, DEVICE_COLUMNS, answer["devices"], "no devices")
    return ExitCode.DONE


def cordon(args: Namespace) -> ExitCode:
    """Cordon a device."""
    if not args.address.strip():
        raise UsageError(
            "devices cordon: ADDRESS is an empty text; `plimsoll devices list` shows the addresses"
        )
    body = {"address": args.address, "reason": args.reason}
    answer: CordonShape = client_of(args).request("POST", "/v1/devices/cordon", body)
    line = f"cordoned: {answer['address']} is given to no guest until `plimsoll devices clear`"
    show(args, answer, lambda _: [line])
    return ExitCode.DONE


def clear(args: Namespace) -> ExitCode:
    """Offer a device again."""
    answer = client_of(args).request("POST", "/v1/devices/clear", {"address": args.address})
    show(args, answer, lambda _: [f"cleared: {args.address} is given to guests again"])
    return ExitCode.DONE


def _add_carving_verbs(add_verb: CommandAdder) -> None:
    """The verbs that compare the host's cards with their carving, without the agent."""
    planning = add_verb(
        "plan",
        plan_cards,
        "show what `apply` would do to the host's cards",
        "Compares what the kernel shows with [devices] sriov_vfs, driver_overrides and vgpu_types, and with\n"
        "the devices that claims and domains have. Ends with 3 if there is something to do, and with 5 if\n"
        "something is refused.",
        "  plimsoll devices plan",
    )
    applying = add_verb(
        "apply",
        apply_to_cards,
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
    for verb in (planning, applying, asserting):
        add_settings_options(verb)
        verb.add_argument(
            "--mixed-size",
            action="store_true",
            help="only the vGPUs of the cards in [devices] mixed_size_cards, as claims and domains need "
            "them; and read the modes of confidential computing of cards that no guest has",
        )
        _add_root_option(verb)


def _add_root_option(command: ArgumentParser) -> None:
    command.add_argument(
        "--root", metavar="DIR", type=Path, default=ROOT, help="use DIR/sys and DIR/run instead of the host's"
    )


def plan_cards(args: Namespace) -> ExitCode:
    """Show what is to be done."""
    found = _look(args)
    if found.refusals:
        return ExitCode.REFUSED
    return ExitCode.DRIFT_FOUND if found.steps else ExitCode.DONE


def assert_carving(args: Namespace) -> ExitCode:
    """Tell whether there is nothing to be done."""
    found = _look(args)
    return ExitCode.DRIFT_FOUND if found.steps or found.refusals else ExitCode.DONE


def _look(args: Namespace) -> Plan:
    found = _carver(args).look()
    answer = {"steps": _card_steps(found.steps), "refusals": list(found.refusals)}
    lines = [*(plain(step.text) for step in found.steps), *_end(found.steps, found.refusals)]
    show(args, answer, lambda _: lines)
    return found


def apply_to_cards(args: Namespace) -> ExitCode:
    """Do what is to be done, until the agent's file asks for no more than the last round made."""
    from agent.driver import ROOT_SIGHT

    if args.dry_run:
        return plan_cards(args)
    steps: tuple[Step, ...] = ()
    with _journal(args).alone():
        carver = _carver(args)
        for _ in range(ROUNDS_MAX):
            last = carver.carve(_teller(args))
            steps += last.steps
            needed, carver = carver.needed, _carver(args)
            if carver.needed == needed:
                break
        failures = (*last.failures, *carver.tell(args.root / ROOT_SIGHT))
    answer = {
        "steps": _card_steps(steps),
        "failures": list(failures),
        "refusals": list(last.refusals),
    }
    show(args, answer, lambda _: _end(steps, (*failures, *last.refusals)))
    if failures:
        return ExitCode.FAILED
    return ExitCode.REFUSED if last.refusals else ExitCode.DONE


def _teller(args: Namespace) -> Callable[[Step | CpuStep], None]:
    """Prints each step when it is done, for people."""
    return lambda step: print(plain(step.text), flush=True) if args.output == "table" else None


def _end(steps: Iterable[object], sentences: Iterable[str]) -> Iterator[str]:
    """What is said below the steps: what was not done, or that there was nothing to do."""
    problems = [f"not done: {plain(sentence)}" for sentence in sentences]
    yield from problems
    if not problems and not tuple(steps):
        yield "nothing to do"


def _card_steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
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
        plan_power,
        "show what `apply` would do to the dedicated CPUs",
        "Compares what the kernel shows with the CPUs that claims and guests have. Ends with 3 if there is\n"
        "something to do.",
        "  plimsoll cpus plan",
    )
    applying = add_verb(
        "apply",
        apply_power,
        "bring the CPUs of claims up, and before libvirt has started, those of no instance down",
        "Needs root; plimsoll-cpus.service runs it at each boot before libvirt starts guests, and after\n"
        "each claim of dedicated CPUs. Where libvirt runs, no CPU goes down: a guest may be starting on it.",
        "  plimsoll cpus apply",
    )
    for verb in (planning, applying):
        add_settings_options(verb)
        _add_root_option(verb)


def plan_power(args: Namespace) -> ExitCode:
    """Show what is to be done."""
    steps = _power(args).look()
    lines = [*(step.text for step in steps), *_end(steps, ())]
    show(args, {"steps": _cpu_steps(steps)}, lambda _: lines)
    return ExitCode.DRIFT_FOUND if steps else ExitCode.DONE


def apply_power(args: Namespace) -> ExitCode:
    """Do what is to be done."""
    steps, failures = _power(args).apply(_teller(args))
    answer = {"steps": _cpu_steps(steps), "failures": list(failures)}
    show(args, answer, lambda _: _end(steps, failures))
    return ExitCode.FAILED if failures else ExitCode.DONE


def _cpu_steps(steps: Iterable[CpuStep]) -> list[dict[str, Any]]:
    return [{"cpu": step.cpu, "state": step.state, "text": step.text} for step in steps]


def _power(args: Namespace) -> CpuPower:
    from agent.carving.carver import CpuPower
    from agent.carving.kernel import CpuKernel
    from agent.config.settings import load_driver

    choice = load_driver(*settings_paths(args))
    return CpuPower(CpuKernel(args.root), choice.driver.host_settings, choice.driver.state_path)

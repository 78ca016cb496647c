"""What a node has and who holds it, found without the agent: from sysfs and from the domains' XML alone. Runs
on the node, with nothing but the standard library; prints JSON.

    lab_truth.py HOST TYPES [KNOWN]

TYPES are the enabled mediated types, by commas; KNOWN is JSON, {unit: its card's address}, of what was there
before and may be gone by now.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

DEVICES = Path("/sys/bus/pci/devices")
MDEVS = Path("/sys/bus/mdev/devices")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NIC, WHOLE_GPU = "8086:10c9", "10de:1eb8"


def virsh(*arguments: str) -> str:
    return subprocess.run(["virsh", *arguments], check=True, capture_output=True, text=True).stdout


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def model(device: Path) -> str:
    return f"{text(device / 'vendor')[2:]}:{text(device / 'device')[2:]}"


def functions_of(device: Path) -> list[Path]:
    return sorted(link.resolve() for link in device.glob("virtfn*"))


def card_of(address: str) -> str:
    """Of a function that is there."""
    physical = DEVICES / address / "physfn"
    return physical.resolve().name if physical.exists() else address


def mediated(device: Path, types: list[str]) -> tuple[int, int]:
    """How many are there, and how many there can be."""
    parents = [each for each in (device, *functions_of(device)) if (each / "mdev_supported_types").exists()]
    made = sum(bool(UUID.fullmatch(each.name)) for parent in parents for each in parent.iterdir())
    for type_id in types:
        folders = [parent / "mdev_supported_types" / type_id for parent in parents]
        folders = [folder for folder in folders if folder.exists()]
        if folders:
            available = sum(int(text(folder / "available_instances")) for folder in folders)
            most = re.search(r"max_instance=(\d+)", text(folders[0] / "description"))
            left = int(most[1]) - made if most else available
            return made, made + min(available, max(left, 0))
    return made, made


def units_of(domain: str, known: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """(class, unit, device) of what the domain's XML names, live where it runs."""
    for source in ElementTree.fromstring(virsh("dumpxml", domain)).iterfind("devices/*/source"):
        address = source.find("address")
        if address is None:
            continue
        if uuid := address.get("uuid"):
            there = MDEVS / uuid
            card = card_of(there.resolve().parent.name) if there.exists() else known.get(uuid, "")
            yield "VGPU", uuid, f"pci:{card}"
        elif address.get("bus"):
            parts = [int(address.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function")]
            unit = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
            card = card_of(unit) if (DEVICES / unit).exists() else known.get(unit, unit)
            yield _class_of(unit, card), unit, f"pci:{card}"


def _class_of(unit: str, card: str) -> str:
    if model(DEVICES / card) == NIC:
        return "SRIOV_NET_VF"
    return "PGPU" if unit == card else "VGPU"


def main(host: str, enabled: str, known_json: str = "{}") -> None:
    types, known = enabled.split(","), json.loads(known_json)
    states = {name: virsh("domstate", name).strip() for name in virsh("list", "--all", "--name").split()}
    guests = {name: sorted(units_of(name, known)) for name in states}
    named = {unit for units in guests.values() for _, unit, _ in units}
    gone: dict[str, int] = {}
    for unit in named:
        if unit in known and not (DEVICES / unit).exists() and not (MDEVS / unit).exists():
            gone[known[unit]] = gone.get(known[unit], 0) + 1
    totals: dict[str, dict[str, int]] = {}
    for device in sorted(DEVICES.iterdir()):
        if (device / "physfn").exists():
            continue
        away, address = gone.get(device.name, 0), f"{host}_pci_{device.name}"
        if model(device) == NIC:
            (interface,) = (device / "net").iterdir()
            totals[f"{host}_net_{interface.name}"] = {"SRIOV_NET_VF": len(functions_of(device)) + away}
        elif model(device) == WHOLE_GPU:
            totals[address] = {"PGPU": 1}
        else:
            typed = [text(each / "nvidia" / "current_vgpu_type") for each in functions_of(device)]
            made, total = mediated(device, types)
            vendors = sum(each not in ("", "0") for each in typed)
            totals[address] = {"VGPU": max(total, made + away) + vendors}
    found = {name: amounts for name, amounts in totals.items() if all(amounts.values())}
    mdevs = {each.name: card_of(each.resolve().parent.name) for each in MDEVS.glob("*")}
    functions = {each.name: [vf.name for vf in functions_of(each)] for each in DEVICES.iterdir()}
    told = {"totals": found, "guests": guests, "mdevs": mdevs, "states": states}
    print(json.dumps({**told, "functions": {card: vfs for card, vfs in functions.items() if vfs}}))


if __name__ == "__main__":
    main(*sys.argv[1:])

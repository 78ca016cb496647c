"""Requests for guests, drawn at random: a domain without addresses, and what is asked for beside it.

What a guest needs stands in its XML, or in a flavor and in groups beside it. Nothing here imports the agent.
"""

import random
from dataclasses import dataclass
from uuid import UUID

NETWORKS = ("red", "blue")
MACS = {"red": "52:54:00:00:aa:{:02x}".format, "blue": "52:54:00:00:bb:{:02x}".format}


@dataclass(frozen=True, slots=True)
class DomainCase:
    """One guest: `options` of `plimsoll claim` beside its XML; `networks` are those of its ports."""

    name: str
    uuid: str
    xml: str
    options: tuple[str, ...]
    vcpus: int
    memory_mb: int
    cells: int
    pinned: bool
    pages: bool
    networks: tuple[str, ...]
    vgpu: bool
    card: bool


def draw_case(
    seed: int,
    *,
    memory_mb: int = 64,
    kind: str = "qemu",
    boot: str = "",
    devices: str = "",
    cpus_per_cell: int = 4,
) -> DomainCase:
    """The request of that seed. `boot` is inside <os>, `devices` are added to those that are drawn."""
    draw = random.Random(seed)
    cells = draw.choice([0, 1, 2, 2])
    most = cpus_per_cell * max(1, cells)
    vcpus = draw.choice([count for count in (1, 2, 3, 4) if count % max(1, cells) == 0 and count <= most])
    pinned, pages = draw.random() < 0.5, draw.random() < 0.4
    networks = tuple(network for network in NETWORKS if draw.random() < 0.6)
    vgpu, card = draw.random() < 0.4, draw.random() < 0.3
    name, uuid = f"guest{seed}", str(UUID(int=draw.getrandbits(128), version=4))
    elements, options = [f"<name>{name}</name>", f"<uuid>{uuid}</uuid>"], []
    elements.append("<metadata><kept xmlns='urn:kept'>as it is</kept></metadata>")
    by_flavor = draw.random() < 0.5
    if by_flavor:
        options += ["--flavor", f"vcpus={vcpus},memory_mb={memory_mb}"]
        specs = {
            "hw:numa_nodes": str(cells) if cells else None,
            "hw:cpu_policy": "dedicated" if pinned else None,
            "hw:mem_page_size": "2MB" if pages else None,
        }
        options += [word for key, value in specs.items() if value for word in ("--spec", f"{key}={value}")]
    else:
        elements += _topology(vcpus, memory_mb, cells, pinned=pinned, pages=pages)
    elements.append(
        f"<os><type arch='x86_64' machine='q35'>hvm</type>{boot}</os><features><acpi/></features>"
    )
    if not by_flavor and cells:
        share, rest = divmod(vcpus, cells)
        first, parts = 0, []
        for cell in range(cells):
            last = first + share + (1 if cell < rest else 0) - 1
            kib = memory_mb * 1024 // cells
            parts.append(f"<cell id='{cell}' cpus='{first}-{last}' memory='{kib}' unit='KiB'/>")
            first = last + 1
        elements.append(f"<cpu><numa>{''.join(parts)}</numa></cpu>")
    ports = []
    for network in networks:
        ports.append(
            f"<interface type='hostdev' managed='yes'><mac address='{MACS[network](seed)}'/>"
            f"<alias name='ua-{network}'/></interface>"
        )
        # Else the alias alone says the network.
        if by_flavor:
            options += ["--spec", f"resources_{network}:SRIOV_NET_VF=1"]
            options += ["--spec", f"trait_{network}:CUSTOM_PHYSNET_{network.upper()}=required"]
    if by_flavor and len(networks) > 1:
        options += ["--spec", "group_policy=none"]
    draw.shuffle(ports)
    if vgpu:
        ports.append(
            "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><alias name='ua-nvidia-11'/></hostdev>"
        )
    if card:
        ports.append("<hostdev mode='subsystem' type='pci' managed='yes'><alias name='ua-t4'/></hostdev>")
    fixed = "<controller type='usb' model='none'/><memballoon model='none'/>"
    elements.append(f"<devices>{''.join(ports)}{fixed}{devices}</devices>")
    xml = f"<domain type='{kind}'>\n  " + "\n  ".join(elements) + "\n</domain>\n"
    return DomainCase(
        name, uuid, xml, tuple(options), vcpus, memory_mb, cells, pinned, pages, networks, vgpu, card
    )


def _topology(vcpus: int, memory_mb: int, cells: int, *, pinned: bool, pages: bool) -> list[str]:
    """What a domain itself says of its CPUs and its memory, in the order that libvirt wants."""
    elements = [f"<memory unit='MiB'>{memory_mb}</memory>"]
    if pages:
        elements.append("<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>")
    elements.append(f"<vcpu>{vcpus}</vcpu>")
    if pinned:
        pins = "".join(f"<vcpupin vcpu='{cpu}'/>" for cpu in range(vcpus))
        elements.append(f"<cputune>{pins}</cputune>")
    return elements

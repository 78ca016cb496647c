"""A guest for the lab's nodes that says on its serial console which devices it sees and where.

It ends then, or goes on. It boots the kernel of the nodes, with a shell and the driver of virtual functions
in its initial ramdisk.
"""

import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from kits.lab_node import Node

FOLDER = "/var/lib/lab-guest"
LOGS = "/var/log/lab-guests"
BOOT = (
    f"<kernel>{FOLDER}/vmlinuz</kernel><initrd>{FOLDER}/initrd</initrd>"
    "<cmdline>console=ttyS0 loglevel=4</cmdline>"
)
BEGUN, ENDED = "guest-begin", "guest-end"
STAY = "guest-stays"
STAYING = BOOT.replace("<cmdline>", f"<cmdline>{STAY} ")
"""As BOOT, of a guest that goes on when it has said what it sees."""
BOOT_TIMEOUT_S = 400
BRIDGE = "0x0604"
INIT = f"""#!/busybox sh
/busybox mkdir -p /proc /sys
/busybox mount -t proc proc /proc
/busybox mount -t sysfs sys /sys
/busybox insmod /igbvf.ko
/busybox sleep 1
echo {BEGUN}
for d in /sys/bus/pci/devices/*; do
  echo "guest-device ${{d##*/}} $(/busybox cat $d/class) $(/busybox cat $d/numa_node)"
done
for n in /sys/class/net/*; do
  [ -e $n/device ] && echo "guest-port $(/busybox cat $n/device/numa_node) $(/busybox cat $n/address)"
done
for n in /sys/devices/system/node/node[0-9]*; do
  echo "guest-node ${{n##*node}} $(/busybox cat $n/cpulist)"
done
echo {ENDED}
case "$(/busybox cat /proc/cmdline)" in *{STAY}*) while :; do /busybox sleep 1000; done;; esac
/busybox poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a guest saw: `ports` {MAC address: NUMA node}, `endpoints` the node of each device but bridges.

    The node is -1 for a device on none.
    """

    ports: dict[str, int] = field(default_factory=dict)
    endpoints: tuple[int, ...] = ()
    cells: frozenset[int] = frozenset()


def kernel() -> Path:
    """The kernel of the lab's nodes, outside them."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-lab"
    return Path(os.environ.get("AGENT_LAB_CACHE") or default) / "img" / "vmlinuz"


def console(name: str) -> str:
    """The serial console of the guest, which goes to a file."""
    return f"<serial type='file'><source path='{LOGS}/{name}.log'/></serial>"


def install_guest(node: Node) -> None:
    """Put the kernel and the initial ramdisk on the node, where they are not there yet."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vmlinuz").write_bytes(kernel().read_bytes())
        (folder / "init").write_text(INIT, encoding="utf-8")
        node.push(folder, FOLDER)
    node.run(
        f"cd {FOLDER} && chmod -R a+rX . && {{ test ! -e initrd || ! cmp -s init root/init || exit 0; }} && "
        f"mkdir -p root {LOGS} && install -m 755 init root/init && "
        "apt-get update -qq && apt-get download -qq busybox-static && "
        "dpkg -x busybox-static_*.deb unpacked && "
        "cp $(find unpacked -path '*/bin/busybox') root/busybox && "
        "python3 -c 'import glob, lzma; "
        'path = glob.glob("/lib/modules/*/kernel/drivers/net/ethernet/intel/igbvf/igbvf.ko.xz")[0]; '
        'open("root/igbvf.ko", "wb").write(lzma.open(path).read())\' && '
        f"cd root && find . | cpio -o -H newc 2>/dev/null | gzip >../initrd && chmod -R a+rX {FOLDER}"
    )


def seen_by(node: Node, name: str) -> Seen:
    """What the guest saw; it has ended then, unless it is of those that go on."""
    log = f"{LOGS}/{name}.log"
    node.wait(f"{name} has looked", lambda: ENDED in node.ask(f"cat {log}"), BOOT_TIMEOUT_S)
    text = node.run(f"sed -n '/{BEGUN}/,/{ENDED}/p' {log}")
    devices = re.findall(r"guest-device (\S+) (0x[0-9a-f]{6}) (-?\d+)", text)
    return Seen(
        {mac: int(cell) for cell, mac in re.findall(r"guest-port (-?\d+) ([0-9a-f:]{17})", text)},
        tuple(int(cell) for _, kind, cell in devices if not kind.startswith(BRIDGE)),
        frozenset(int(cell) for cell in re.findall(r"guest-node (\d+)", text)),
    )

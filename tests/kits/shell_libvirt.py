"""A libvirt on disk for the commands of the guide: `virsh`, and the Python binding of the command line.

A domain is a file, `NAME.xml`. `virsh start` asks the gate's hook, as libvirtd does, and then the fake
driver's host file has the guest as running, with the very devices that its domain names.
"""

import sys
import textwrap
from pathlib import Path

from agent.gate import install

BINDING = """
import pathlib
import re
import subprocess

VIR_DOMAIN_DEFINE_VALIDATE = VIR_DOMAIN_XML_INACTIVE = VIR_DOMAIN_XML_SECURE = 0
VIR_DOMAIN_UNDEFINE_KEEP_NVRAM = VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV = 0
VIR_ERR_NO_DOMAIN = 42
STORE = pathlib.Path({store!r})


class libvirtError(Exception):
    def get_error_code(self):
        return VIR_ERR_NO_DOMAIN


def registerErrorHandler(handler, context):
    pass


def open(uri):
    return Connection()


class Domain:
    def __init__(self, path):
        self.path = path

    def name(self):
        return self.path.stem

    def XMLDesc(self, flags):
        return self.path.read_text()

    def isActive(self):
        return False

    def create(self):
        if subprocess.run(["virsh", "start", self.name()]).returncode:
            raise libvirtError("the domain did not start")

    def undefineFlags(self, flags):
        self.path.unlink()


class Connection:
    def lookupByUUIDString(self, uuid):
        for path in STORE.glob("*.xml"):
            if f"<uuid>{{uuid}}</uuid>" in path.read_text():
                return Domain(path)
        raise libvirtError("no domain with matching uuid " + uuid)

    def defineXMLFlags(self, xml, flags):
        name = re.search("<name>(.*)</name>", xml)[1]
        path = STORE / f"{{name}}.xml"
        if path.exists() and re.findall("<uuid>.*", xml) != re.findall("<uuid>.*", path.read_text()):
            raise libvirtError(f"domain {{name}} is already defined with another uuid")
        path.write_text(xml)
        return Domain(path)

    def defineXML(self, xml):
        return self.defineXMLFlags(xml, 0)

    def listAllDevices(self, flags):
        return []
"""

VIRSH = """\
#!{python}
import pathlib
import re
import subprocess
import sys

import yaml

from drivers.host.domain_xml import passed_addresses

store, host_file = pathlib.Path({store!r}), pathlib.Path({host_file!r})
command, *words = [word for word in sys.argv[1:] if word != "--inactive"]
path = store / f"{{words[0]}}.xml"
text = path.read_text()
uuid = re.search("<uuid>(.*)</uuid>", text)[1]
if command == "dumpxml":
    print(text, end="")
elif command == "domuuid":
    print(uuid + "\\n")
elif command == "start":
    done = subprocess.run([{hook!r}, words[0], "prepare", "begin", "-"], input=text, text=True, env={{}})
    if done.returncode:
        sys.exit(f"error: Failed to start domain '{{words[0]}}'")
    host = yaml.safe_load(host_file.read_text())
    (guest,) = (guest for guest in host["guests"] if guest["uuid"] == uuid)
    addresses = passed_addresses(text)
    guest |= {{
        "state": "running",
        "units": [
            {{"resource_class": gpu["resource_class"], "unit": unit, "device": "pci:" + gpu["address"]}}
            for gpu in host.get("gpus", ())
            for unit in gpu.get("units", ())
            if unit in addresses
        ],
    }}
    host_file.write_text(yaml.safe_dump(host))
else:
    sys.exit(f"error: unknown command: '{{command}}'")
"""


class ShellLibvirt:
    """The libvirt of one host, below a directory; `bin` is first in its PATH, `binding` in its PYTHONPATH."""

    def __init__(self, directory: Path, *, api_socket: Path, host_file: Path, programs: Path) -> None:
        self.store, self.binding = directory / "domains", directory / "binding"
        for folder in (self.store, self.binding):
            folder.mkdir(parents=True)
        config, hook = directory / "gate.conf", directory / "hook"
        config.write_text(f"socket = {api_socket}\nunanswered = refuse\n")
        hook.write_text(install.hook_script(config=config))
        (self.binding / "libvirt.py").write_text(BINDING.format(store=str(self.store)))
        virsh = programs / "virsh"
        paths = {"store": str(self.store), "host_file": str(host_file), "hook": str(hook)}
        virsh.write_text(VIRSH.format(python=sys.executable, **paths))
        for program in (virsh, hook):
            program.chmod(0o755)

    def define(
        self, name: str, uuid: str, devices: str = "", *, vcpus: int = 2, memory_mb: int = 2048
    ) -> None:
        """A domain, as `virsh dumpxml --inactive` prints one."""
        memory = f"unit='KiB'>{memory_mb * 1024}"
        (self.store / f"{name}.xml").write_text(
            textwrap.dedent(f"""\
            <domain type='kvm'>
              <name>{name}</name>
              <uuid>{uuid}</uuid>
              <memory {memory}</memory>
              <currentMemory {memory}</currentMemory>
              <vcpu placement='static'>{vcpus}</vcpu>
              <os>
                <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
                <boot dev='hd'/>
              </os>
              <devices>
                <emulator>/usr/bin/qemu-system-x86_64</emulator>
                <disk type='file' device='disk'>
                  <source file='/var/lib/libvirt/images/{name}.qcow2'/>
                  <target dev='vda' bus='virtio'/>
                </disk>
                <controller type='pci' index='0' model='pcie-root'/>
                {devices}
              </devices>
            </domain>
            """)
        )

    def xml(self, name: str) -> str:
        """The definition of a domain."""
        return (self.store / f"{name}.xml").read_text()

"""Which CPU guests get, as [libvirt] cpu_mode and cpu_models say: its flags become traits. Pure.

Source: nova 34, nova/virt/libvirt/driver.py (_get_cpu_feature_traits);
https://libvirt.org/formatdomain.html#cpu-model-and-topology
"""

from collections.abc import Collection
from dataclasses import dataclass
from xml.etree import ElementTree

from agent.errors import SettingsError

MODES = (
    ("host-model", "the host's CPU model, as libvirt knows it"),
    ("host-passthrough", "the host's CPU itself"),
    ("custom", "cpu_models"),
    ("none", "QEMU's default model"),
)
_DEFAULT_MODELS = {"x86_64": "qemu64", "i686": "qemu32", "ppc64": "POWER8", "ppc64le": "POWER8"}


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The options. `mode` None is host-model, or the host's CPU where libvirt has no model of it.

    `extra_flags` are libvirt's names of flags that guests have beside those of the model, with a minus of
    those that they do not have.
    """

    mode: str | None = None
    models: tuple[str, ...] = ()
    extra_flags: tuple[str, ...] = ()

    @classmethod
    def of(cls, mode: str | None, models: Collection[str], extra_flags: Collection[str]) -> "CpuModel":
        """The options of [libvirt]. Raises SettingsError where one contradicts another."""
        if mode == "custom" and not models:
            raise SettingsError("[libvirt] cpu_mode = custom needs cpu_models", option="cpu_models")
        if models and mode != "custom":
            raise SettingsError("[libvirt] cpu_models needs cpu_mode = custom", option="cpu_models")
        if extra_flags and mode == "none":
            raise SettingsError(
                "[libvirt] cpu_model_extra_flags needs another cpu_mode than none",
                option="cpu_model_extra_flags",
            )
        return cls(mode, tuple(models), tuple(flag.strip().lower() for flag in extra_flags))

    def elements(self, arch: str, host: str, host_model: str) -> tuple[str, ...]:
        """The <cpu> elements whose flags guests have, each as text.

        `host` and `host_model` are those of the host and of libvirt's model of it, "" if there is none.
        """
        if self.mode == "custom":
            return tuple(_cpu_element(arch, model) for model in self.models)
        if self.mode == "none":
            return (_cpu_element(arch, _DEFAULT_MODELS[arch]),) if arch in _DEFAULT_MODELS else ()
        chosen = host if self.mode == "host-passthrough" else host_model or host
        return (chosen,) if chosen else ()

    def flags(self, of_models: frozenset[str]) -> frozenset[str]:
        """The flags that guests have, from those of their models."""
        added = {flag.removeprefix("+") for flag in self.extra_flags if not flag.startswith("-")}
        return (of_models | added) - {flag[1:] for flag in self.extra_flags if flag.startswith("-")}


def _cpu_element(arch: str, model: str) -> str:
    cpu = ElementTree.Element("cpu")
    ElementTree.SubElement(cpu, "arch").text = arch
    ElementTree.SubElement(cpu, "model").text = model
    return ElementTree.tostring(cpu, encoding="unicode")

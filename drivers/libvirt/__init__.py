"""The libvirt driver: KVM and QEMU hosts as libvirt describes them."""

from drivers.libvirt.driver import LibvirtDriver

__all__ = ["LibvirtDriver"]

"""The libvirt driver: KVM and QEMU hosts as libvirt describes them."""

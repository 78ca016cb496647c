from drivers.libvirt.io.pending_reads import PendingReads


def test_at_first_everything_is_out_of_date_and_then_what_was_named() -> None:
    pending_reads = PendingReads()
    assert pending_reads.take_domains() is None
    assert pending_reads.take_domains() == frozenset()
    pending_reads.add_domain("a")
    pending_reads.add_domain("a")
    assert pending_reads.take_domains() == {"a"}
    pending_reads.add_domain("b")
    pending_reads.add_everything()
    assert pending_reads.take_domains() is None


def test_devices_are_kept_apart_from_domains() -> None:
    pending_reads = PendingReads()
    pending_reads.take_devices()
    pending_reads.take_domains()
    pending_reads.add_device("pci_0000_41_00_0")
    assert pending_reads.take_domains() == frozenset()
    assert pending_reads.take_devices() == {"pci_0000_41_00_0"}
    pending_reads.add_all_devices()
    assert pending_reads.take_devices() is None
    pending_reads.add_all_domains()
    assert pending_reads.take_domains() is None

import threading

from agent.errors import DriverUnavailable
from drivers.libvirt.io.vcpu_watch import VcpuWatch


def test_it_looks_again_after_a_failure_until_it_is_closed() -> None:
    looks = threading.Semaphore(0)

    def look() -> None:
        looks.release()
        raise DriverUnavailable("libvirtd is away")

    watch = VcpuWatch(look, interval_s=0.01)
    watch.start()
    for _ in range(3):
        assert looks.acquire(timeout=5)
    watch.close()
    while looks.acquire(blocking=False):
        pass
    assert not looks.acquire(timeout=0.05)

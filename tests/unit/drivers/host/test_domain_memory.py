import pytest
from kits.libvirt_node import domain

from agent.driver import UsedMemory
from agent.errors import DriverDataError
from drivers.host.domain_xml import parse_domain


def with_memory(*elements: str, memory_mb: int = 512) -> tuple[UsedMemory, ...]:
    text = domain(1).replace("<memory unit='MiB'>512</memory>", f"<memory unit='MiB'>{memory_mb}</memory>")
    return parse_domain(text.replace("</domain>", "".join(elements) + "</domain>")).memory


STRICT = "<numatune><memory mode='strict' nodeset='{}'/></numatune>"


HUGE = "<memoryBacking><hugepages>{}</hugepages></memoryBacking>"


TWO_CELLS = (
    "<cpu><numa><cell id='0' cpus='0' memory='1' unit='GiB'/>"
    "<cell id='1' cpus='1' memory='2097152' unit='KiB'/></numa></cpu>"
)


def test_memory_that_may_be_anywhere_is_on_no_node() -> None:
    wish = "<numatune><memory mode='preferred' nodeset='1'/></numatune>"
    for elements in ("", wish):
        assert with_memory(elements) == ()


def test_large_pages_are_of_some_node_wherever_they_may_be() -> None:
    pages = HUGE.format("<page size='1' unit='GiB'/>")
    assert with_memory(pages) == (UsedMemory(None, 512, 1048576),)
    assert with_memory(HUGE.format("")) == (UsedMemory(None, 512, 2048),)
    usual = domain(1).replace("</domain>", HUGE.format("") + "</domain>")
    assert parse_domain(usual, huge_page_kib=65536).memory == (UsedMemory(None, 512, 65536),)
    assert with_memory(STRICT.format(1), HUGE.format("")) == (UsedMemory(1, 512, 2048, 0),)
    second = HUGE.format("<page size='2' unit='MiB' nodeset='1'/>")
    assert with_memory(TWO_CELLS, second) == (UsedMemory(None, 2048, 2048),)


def test_memory_is_on_the_nodes_that_it_must_be_on_in_pages_of_its_size() -> None:
    assert with_memory(STRICT.format(1)) == (UsedMemory(1, 512, guest_cell=0),)
    assert with_memory(STRICT.format("0-1"), memory_mb=513) == (UsedMemory(0, 257), UsedMemory(1, 256))
    page = HUGE.format("<page size='2' unit='MiB'/>")
    assert with_memory(STRICT.format(1), page) == (UsedMemory(1, 512, 2048, 0),)


def test_the_memory_of_each_guest_cell() -> None:
    tune = (
        "<numatune><memory mode='strict' nodeset='0-3'/>"
        "<memnode cellid='0' mode='strict' nodeset='3'/><memnode cellid='1' mode='strict' nodeset='2'/>"
        "</numatune>"
    )
    pages = HUGE.format("<page size='1048576' unit='KiB' nodeset='1'/>")
    assert with_memory(TWO_CELLS, tune, pages) == (
        UsedMemory(3, 1024, guest_cell=0),
        UsedMemory(2, 2048, 1048576, 1),
    )
    both = HUGE.format("<page size='2048' unit='KiB' nodeset='0-1'/>")
    assert {each.page_kib for each in with_memory(TWO_CELLS, tune, both)} == {2048}


@pytest.mark.parametrize(
    "element",
    [
        STRICT.format("x"),
        "<numatune><memnode cellid='-1' mode='strict' nodeset='0'/></numatune>",
        STRICT.format(0) + HUGE.format("<page size='many' unit='KiB'/>"),
        STRICT.format(0) + HUGE.format("<page size='0' unit='KiB'/>"),
        HUGE.format("<page size='512' unit='bytes'/>"),
        STRICT.format(0) + "<cpu><numa><cell id='0' memory='x'/></numa></cpu>",
    ],
)
def test_memory_that_makes_no_sense_is_told(element: str) -> None:
    with pytest.raises(DriverDataError):
        with_memory(element)


def test_a_plugged_memory_device_is_on_the_nodes_of_its_cell_or_on_its_own() -> None:
    dimm = "<memory model='dimm'>{}<target><size unit='MiB'>256</size><node>1</node></target></memory>"
    tune = "<numatune><memory mode='strict' nodeset='3'/></numatune>"
    cells = (UsedMemory(3, 1024, guest_cell=0), UsedMemory(3, 2048, guest_cell=1))
    devices = f"<devices>{dimm.format('')}</devices>"
    assert with_memory(TWO_CELLS, tune, devices) == (*cells, UsedMemory(3, 256, guest_cell=1))
    own = "<source><pagesize unit='KiB'>2048</pagesize><nodemask>2</nodemask></source>"
    assert with_memory(TWO_CELLS, tune, f"<devices>{dimm.format(own)}</devices>") == (
        *cells,
        UsedMemory(2, 256, 2048, 1),
    )
    assert with_memory(TWO_CELLS, f"<devices>{dimm.format('')}</devices>") == ()


def test_memory_devices_that_are_files_take_no_memory() -> None:
    nvdimm = "<memory model='nvdimm'><target><size unit='MiB'>256</size><node>0</node></target></memory>"
    with_cells = (TWO_CELLS, "<numatune><memory mode='strict' nodeset='3'/></numatune>")
    assert with_memory(*with_cells, f"<devices>{nvdimm}</devices>") == with_memory(*with_cells)

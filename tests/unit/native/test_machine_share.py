import os

import pytest

from uzu_native.errors import OptionsError
from uzu_native.machine_share import MachineShare, parse_cpu_set, show_cpu_set
from uzu_native.openvino_executor import affordable_blocks
from uzu_native.options import parse_options


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("2,1-2", {1, 2}), (" 4 , 6-7", {4, 6, 7}), ("5-5", {5})],
)
def test_a_cpu_set_is_read_as_it_is_shown(text, cpus):
    assert parse_cpu_set(text) == cpus
    assert parse_cpu_set(show_cpu_set(frozenset(cpus))) == cpus


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' in ''"),
        ("0,,1", "'' in '0,,1'"),
        ("0-", "'0-' in '0-'"),
        ("all", 'name CPUs like "0-3,8"'),
        ("-1", "'-1' in"),
        ("٣", "'٣' in"),
        ("3-1", "'3-1' runs backwards: write 1-3"),
        ("0-4096", "no CPU is above 4095, so 4096 is none"),
    ],
)
def test_what_is_no_cpu_set_is_refused_where_options_are_read(text, message):
    with pytest.raises(OptionsError, match=rf"option 'cpu_set': .*{message}"):
        parse_options({"model": "m", "cpu_set": text})


CONFIG = {"instance_group": [{"name": "m_0", "count": 2}, {"name": "m_1_0", "count": 3}]}


@pytest.mark.parametrize(
    ("config", "name", "share"),
    [
        (CONFIG, "m_0_0", MachineShare(0, 5)),
        (CONFIG, "m_0_1", MachineShare(1, 5)),
        (CONFIG, "m_1_0_2", MachineShare(4, 5)),
        ({}, "m_0", MachineShare(0, 1)),
    ],
)
def test_an_instance_is_found_in_its_groups(config, name, share):
    assert MachineShare.of_instance(config, name) == share


@pytest.mark.parametrize(
    ("named", "count", "parts"),
    [
        ({0, 1, 2, 3}, 2, [{0, 1}, {2, 3}]),
        ({1, 4, 6}, 2, [{1}, {4, 6}]),
        ({3, 5}, 3, [{3}, {5}, {3}]),
        ({2}, 1, [{2}]),
    ],
)
def test_instances_share_out_a_cpu_set(named, count, parts):
    usable = frozenset(range(8))
    assert [MachineShare(i, count).cpus(frozenset(named), usable) for i in range(count)] == parts


def test_a_cpu_that_may_not_be_used_is_named():
    with pytest.raises(OptionsError, match=r"may not use CPU 5, 7; it may use 0-1,3$"):
        MachineShare().cpus(frozenset({1, 5, 7}), frozenset({0, 1, 3}))


def test_threads_are_the_cpus_by_the_instances_and_a_cpu_set_is_kept_to():
    before = os.sched_getaffinity(0)
    assert MachineShare(1, 2).keep_to_cpus(None) == max(1, len(before) // 2)
    assert MachineShare(0, 1000).keep_to_cpus(None) == 1
    assert os.sched_getaffinity(0) == before
    last = max(before)
    try:
        assert MachineShare().keep_to_cpus(str(last)) == 1
        assert os.sched_getaffinity(0) == {last}
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("free_bytes", "instances", "blocks"),
    [
        (100_000, 1, 80),  # eight contexts
        (25_000, 1, 50),  # a fifth of the memory
        (25_000, 2, 25),
        (100_000, 4, 50),
        (25_000, 100, 10),  # one context
    ],
)
def test_instances_share_out_the_memory_for_kv(free_bytes, instances, blocks):
    assert affordable_blocks(100, 10, free_bytes, instances) == blocks

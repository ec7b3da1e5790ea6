"""How the instances of a model share one machine: which CPUs and how much of the memory each may take."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from uzu_native.errors import OptionsError

HIGHEST_CPU = 4095
_RANGE = re.compile(r"(?P<first>[0-9]{1,4})(-(?P<last>[0-9]{1,4}))?")
_EXAMPLE = 'name CPUs like "0-3,8"'


def parse_cpu_set(text: str) -> frozenset[int]:
    """The CPUs that a list such as `0-3,8` names.

    Raises:
        OptionsError: it is no such list; the text says which part is wrong.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise OptionsError(f"option 'cpu_set': {part.strip()!r:.60} in {text!r:.60}: {_EXAMPLE}")
        first = int(match["first"])
        last = first if match["last"] is None else int(match["last"])
        if last < first:
            raise OptionsError(f"option 'cpu_set': {part.strip()!r} runs backwards: write {last}-{first}")
        if last > HIGHEST_CPU:
            raise OptionsError(f"option 'cpu_set': no CPU is above {HIGHEST_CPU}, so {last} is none")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


@dataclass(frozen=True, slots=True)
class MachineShare:
    """One instance's share.

    Args:
        index: which of the model's instances, from 0.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    @classmethod
    def of_instance(cls, model_config: Mapping[str, Any], instance_name: str) -> MachineShare:
        """The share of the instance that Triton calls `instance_name`: a group's name, `_` and a number.

        Args:
            model_config: the model's configuration, as Triton gives it to the instance.
            instance_name: the instance's.
        """
        index, count = 0, 0
        for group in model_config.get("instance_group", ()):
            size = int(group.get("count", 1))
            prefix, _, number = instance_name.rpartition("_")
            if prefix == group.get("name") and number.isdecimal() and int(number) < size:
                index = count + int(number)
            count += size
        return cls(index, max(1, count))

    def cpus(self, named: frozenset[int] | None, usable: frozenset[int]) -> frozenset[int]:
        """The CPUs to keep to: a part of those that are named, or all that are usable.

        Instances that are not kept apart move to where there is time; parts are next to each other, and
        only when there are fewer CPUs than instances do some have the same one.

        Args:
            named: what `cpu_set` names; None without it.
            usable: what this process may use.

        Raises:
            OptionsError: a named CPU is not usable.
        """
        if named is None:
            return usable
        if missing := sorted(named - usable):
            raise OptionsError(
                f"option 'cpu_set': this process may not use CPU {', '.join(map(str, missing[:8]))}; it may "
                f"use {show_cpu_set(usable)}"
            )
        ordered = sorted(named)
        if len(ordered) < self.count:
            return frozenset({ordered[self.index % len(ordered)]})
        begin, end = (len(ordered) * i // self.count for i in (self.index, self.index + 1))
        return frozenset(ordered[begin:end])

    def keep_to_cpus(self, cpu_set: str | None) -> int:
        """Keep this process to the instance's CPUs, and say how many are its own.

        OpenVINO counts the CPUs when it is loaded, so this comes before.

        Raises:
            OptionsError: `cpu_set` names a CPU that this process may not use, or is no list of CPUs.
        """
        named = None if cpu_set is None else parse_cpu_set(cpu_set)
        cpus = self.cpus(named, frozenset(os.sched_getaffinity(0)))
        if named is None:
            return max(1, len(cpus) // self.count)
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cpus)
        return len(cpus)


def show_cpu_set(cpus: frozenset[int]) -> str:
    """The list that `parse_cpu_set` reads."""
    ordered = sorted(cpus)
    starts = [c for c in ordered if c - 1 not in cpus]
    ends = [c for c in ordered if c + 1 not in cpus]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))

"""The executor on OpenVINO's CPU plugin: one infer request for each lane, all over the same KV memory.

Lanes are compiled for different numbers of threads. A step of fewer rows than its lane has threads is filled
up with rows of a block of their own; so the numbers depend on neither (see `PagedModel.compile`).
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uzu_native.errors import ModelLoadError
from uzu_native.executor import ExecutionError, OnDone
from uzu_native.openvino_graph import LOGITS_INDICES, PagedModel, Precision, ov
from uzu_native.step import Lane, Row, StepPlan

DEFAULT_CONTEXTS = 8
MEMORY_SHARE = 0.2


class OpenVinoExecutor:
    """Runs a paged model.

    Args:
        ir_path: openvino_model.xml.
        threads: of `Lane.ALL`.
        split: whether to make the other two lanes, of half as many threads each.
        precision: of numbers; with `exact` they must not depend on the other rows of a step either.
        context_tokens: longest sequence; the pool holds at least one.
        kv_cache_tokens: size of the pool; None sizes it by the memory that is free.
        instances: of the model; so many pools share the memory.

    Raises:
        ModelLoadError: the IR cannot be run, or there is no memory for one context.
    """

    def __init__(
        self,
        ir_path: Path,
        *,
        threads: int,
        split: bool,
        precision: Precision,
        context_tokens: int,
        kv_cache_tokens: int | None,
        instances: int = 1,
    ) -> None:
        self._ir_path = ir_path
        self._precision = precision
        self._threads = {Lane.ALL: threads}
        if split:
            self._threads |= dict.fromkeys((Lane.DECODES, Lane.PROMPTS), threads // 2)
        self._requests: dict[Lane, Any] = {}
        self._wanted = dict.fromkeys(self._threads, 0)
        self._on_done: dict[Lane, OnDone] = {}
        whole = self._compile()
        self._caches = {
            port.get_any_name(): (port.get_element_type(), [d.get_length() for d in _tail(port)])
            for port in whole.inputs
            if "cache" in port.get_any_name()
        }
        self.block_size = _block_size(self._caches)
        block_bytes = sum(int(np.prod(shape)) * kind.size for kind, shape in self._caches.values())
        context_blocks = -(-context_tokens // self.block_size)
        if kv_cache_tokens is None:
            self.block_count = affordable_blocks(block_bytes, context_blocks, _available_memory(), instances)
        else:
            self.block_count = -(-kv_cache_tokens // self.block_size)
        self.kv_bytes = self.block_count * block_bytes
        self.vocabulary_size = int(whole.outputs[0].get_partial_shape()[-1].get_length())
        # One block more than the pool has, for rows that only fill a step up.
        self._filler = Row([0], 0, [self.block_count], wants_logits=False)
        self._make_ready()

    def _compile(self) -> Any:
        """Compile for each lane; the model of `Lane.ALL` is the result."""
        paged = PagedModel(self._ir_path)
        whole = paged.compile(1, self._threads[Lane.ALL], self._precision)
        self._requests[Lane.ALL] = whole.create_infer_request()
        if Lane.DECODES in self._threads:
            halves = paged.compile(2, self._threads[Lane.DECODES], self._precision)
            for lane in (Lane.DECODES, Lane.PROMPTS):
                self._requests[lane] = halves.create_infer_request()
        return whole

    def _make_ready(self) -> None:
        """Allocate the KV memory for requests that are there, and run each once."""
        self._check_memory()
        for name, (kind, shape) in self._caches.items():
            memory = ov.Tensor(kind, ov.Shape([self.block_count + 1, *shape]))
            for request in self._requests.values():
                request.set_tensor(name, memory)
        self._warm_up()
        for lane, request in self._requests.items():
            request.set_callback(functools.partial(self._finished, lane), None)

    def _warm_up(self) -> None:
        """Run each lane once: the first step of a stream packs its weights, which takes as long as a load."""
        for lane, request in self._requests.items():
            for token_ids in ([0, 0], [0]):
                row = Row(token_ids, 0, self._filler.block_table, wants_logits=True)
                for name, array in self._inputs(self._filled(StepPlan(lane, (row,)))).items():
                    request.set_tensor(name, ov.Tensor(array))
                request.infer()

    def _check_memory(self) -> None:
        free = _available_memory()
        if self.kv_bytes > free:
            need, have = self.kv_bytes >> 20, free >> 20
            raise ModelLoadError(
                f"a KV cache of {self.block_count * self.block_size} tokens needs {need} MiB and {have} MiB "
                "are free; set kv_cache_tokens or context_tokens lower"
            )

    def start(self, plan: StepPlan, on_done: OnDone) -> None:
        """Begin a step; see `Executor.start`."""
        request = self._requests[plan.lane]
        plan = self._filled(plan)
        for name, array in self._inputs(plan).items():
            request.set_tensor(name, ov.Tensor(array))
        self._on_done[plan.lane] = on_done
        request.start_async()

    def _filled(self, plan: StepPlan) -> StepPlan:
        missing = self._threads[plan.lane] - len(plan.rows)
        if not self._precision.exact or missing < 1 or any(len(row.token_ids) > 1 for row in plan.rows):
            return plan
        return StepPlan(plan.lane, (*plan.rows, *[self._filler] * missing))

    def _inputs(self, plan: StepPlan) -> dict[str, NDArray[Any]]:
        token_ids: list[int] = []
        positions: list[int] = []
        past: list[int] = []
        begins = [0]
        blocks: list[int] = []
        block_begins = [0]
        wanted: list[int] = []
        longest = 0
        for row in plan.rows:
            end = row.start + len(row.token_ids)
            token_ids += row.token_ids
            positions += range(row.start, end)
            past.append(row.start)
            begins.append(len(token_ids))
            blocks += row.block_table
            block_begins.append(len(blocks))
            longest = max(longest, end)
            if row.wants_all_logits:
                wanted += range(len(token_ids) - len(row.token_ids), len(token_ids))
            elif row.wants_logits:
                wanted.append(len(token_ids) - 1)
        self._wanted[plan.lane] = len(wanted)
        return {
            "input_ids": np.array(token_ids, np.int64),
            "position_ids": np.array(positions, np.int64),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": np.array(begins, np.int32),
            "block_indices": np.array(blocks, np.int32),
            "block_indices_begins": np.array(block_begins, np.int32),
            "max_context_len": np.array(longest, np.int32),
            # The head cannot run over nothing: a step that wants no logits computes one row of them.
            LOGITS_INDICES: np.array(wanted or [0], np.int32),
        }

    def _finished(self, lane: Lane, _: object) -> None:
        self._on_done[lane](lane)

    def finish(self, lane: Lane) -> NDArray[np.float32]:
        """See `Executor.finish`."""
        try:
            self._requests[lane].wait()
        except RuntimeError as error:
            raise ExecutionError(f"OpenVINO: {error}") from error
        logits: NDArray[np.float32] = self._requests[lane].get_tensor("logits").data
        return logits.reshape(-1, self.vocabulary_size)[: self._wanted[lane]]

    def release(self) -> None:
        """See `Executor.release`."""
        self._requests.clear()
        # Freed memory is the allocator's at first, and the system's only when it is told.
        ctypes.CDLL(None).malloc_trim(0)

    def restore(self) -> None:
        """See `Executor.restore`."""
        try:
            self._compile()
            self._make_ready()
        except (ModelLoadError, RuntimeError, MemoryError) as error:
            self.release()
            raise ExecutionError(f"the model cannot be loaded again: {error}") from error


def affordable_blocks(block_bytes: int, context_blocks: int, free_bytes: int, instances: int) -> int:
    """Blocks of a pool whose size nobody named.

    Args:
        block_bytes: memory of a block.
        context_blocks: blocks of the longest sequence; so many at least, and a few times that at most.
        free_bytes: memory that is free now.
        instances: how many such pools there will be.
    """
    affordable = int(free_bytes * MEMORY_SHARE) // instances // block_bytes
    return max(context_blocks, min(DEFAULT_CONTEXTS * context_blocks, affordable))


def _tail(port: Any) -> list[Any]:
    """The dimensions of a cache input after the first, which is the number of blocks."""
    return list(port.get_partial_shape())[1:]


def _available_memory() -> int:
    """Bytes that the kernel reckons can be used without swapping."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ModelLoadError("/proc/meminfo has no MemAvailable; set kv_cache_tokens")


def _block_size(caches: dict[str, tuple[Any, list[int]]]) -> int:
    """Tokens in a block, read off a value cache: [blocks, heads, tokens, width]."""
    sizes = {shape[1] for name, (_, shape) in caches.items() if name.startswith("value_cache")}
    if len(sizes) != 1:
        raise ModelLoadError(f"the value caches have blocks of {sorted(sizes)} tokens; one size is expected")
    return sizes.pop()

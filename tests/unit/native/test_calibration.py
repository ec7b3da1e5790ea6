import pytest

from uzu_native.calibration import CONTEXTS_TOKENS, calibrate
from uzu_native.executor import FakeExecutor


class TimedExecutor(FakeExecutor):
    """A model whose steps take a known time on a clock of its own."""

    def __init__(self, block_count: int) -> None:
        super().__init__(block_count, block_size=32)
        self.now = 0.0

    def start(self, plan, on_done):
        super().start(plan, on_done)
        for row in plan.rows:
            tokens = len(row.token_ids)
            self.now += 0.0005 * tokens if tokens > 1 else 0.0004 + row.start * 1.25e-6
        self.now += 0.006 if all(len(row.token_ids) == 1 for row in plan.rows) else 0.0

    def clock(self) -> float:
        return self.now


def test_costs_are_those_of_the_model():
    executor = TimedExecutor(64)
    costs = calibrate(executor, executor.clock)
    assert costs.base_s == pytest.approx(0.006, rel=0.05)
    assert costs.row_seconds(1500) == pytest.approx(0.0004 + 1500 * 1.25e-6, rel=0.05)
    assert costs.prompt_token_s == pytest.approx(0.0005)
    # It touches no more memory than it measures.
    assert max(b for plan in executor.plans for row in plan.rows for b in row.block_table) <= 21
    assert max(row.start for plan in executor.plans for row in plan.rows) < CONTEXTS_TOKENS[-1] + 16


@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_small_pools_are_measured_as_far_as_they_go(blocks):
    executor = TimedExecutor(blocks)
    costs = calibrate(executor, executor.clock)
    assert costs.base_s == pytest.approx(0.006, rel=0.05)
    assert costs.row_seconds(100) == pytest.approx(0.0005, rel=0.2)

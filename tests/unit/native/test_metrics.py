import pytest
from engine_fixtures import ManualClock, Oracle, make_engine, make_request, prompt, run
from prometheus_client.parser import text_string_to_metric_families

from uzu_contract.metrics import METRICS, PERF_METRICS
from uzu_contract.priority import PriorityClass
from uzu_native.executor import FakeExecutor
from uzu_native.metrics import EngineMetrics, Histogram, samples
from uzu_native.metrics_reporter import MetricsReporter


class Server:
    """Keeps what a reporter tells it, as Triton would show it."""

    def __init__(self):
        self.values = {}
        self.kinds = {}

    def make_family(self, name, description, kind):
        assert name not in self.kinds, "a family is registered once"
        self.kinds[name] = kind

        def make_series(labels):
            key = (name, tuple(labels.items()))
            assert key not in self.values
            self.values[key] = 0.0
            return Series(self.values, key, kind)

        return make_series

    def text(self):
        lines = []
        for (name, labels), value in self.values.items():
            shown = ",".join(f'{k}="{v}"' for k, v in labels)
            lines.append(f"{name}{{{shown}}} {value}")
        return "\n".join(lines) + "\n"


class Series:
    def __init__(self, values, key, kind):
        self.values, self.key, self.kind = values, key, kind

    def increment(self, value):
        assert self.kind == "counter"
        assert value >= 0
        self.values[self.key] += value

    def set(self, value):
        assert self.kind == "gauge"
        self.values[self.key] = value


def report(metrics, server=None):
    server = server or Server()
    MetricsReporter(metrics, {"model": "m"}, server.make_family, pytest.fail).report()
    return server


def test_a_histogram_counts_each_observation_in_every_bucket_above_it():
    metrics = EngineMetrics()
    metrics.step_seconds = Histogram((0.1, 1.0))
    for value in (0.1, 0.5, 7.0, 7.0):
        metrics.step_seconds.observe(value)
    metrics.step_seconds.observe(0.01, times=3)
    found = {
        (s.family, s.labels): s.value for s in samples(metrics) if s.family.startswith("uzu_step_seconds")
    }
    assert found == {
        ("uzu_step_seconds_bucket", (("le", "0.1"),)): 4,
        ("uzu_step_seconds_bucket", (("le", "1"),)): 5,
        ("uzu_step_seconds_bucket", (("le", "+Inf"),)): 7,
        ("uzu_step_seconds_sum", ()): pytest.approx(14.63),
        ("uzu_step_seconds_count", ()): 7,
    }


def test_every_metric_of_the_table_is_reported_and_parses():
    engine = make_engine()
    run(engine, (prompt(5), make_request()), (prompt(9), make_request()))
    text = report(engine.metrics).text()
    families = {family.name for family in text_string_to_metric_families(text)}
    for spec in METRICS:
        wanted = f"{spec.name}_bucket" if spec.kind == "histogram" else spec.name
        assert any(wanted in (name, f"{name}_total") for name in families), spec.name


def test_a_second_report_adds_what_is_new_and_gauges_go_down():
    metrics, server = EngineMetrics(), Server()
    reporter = MetricsReporter(metrics, {"model": "m", "instance": "m_0"}, server.make_family, pytest.fail)
    metrics.generated_tokens, metrics.requests_running = 5, 2
    metrics.requests_waiting["batch"] = 3
    reporter.report()
    metrics.generated_tokens, metrics.requests_running = 7, 0
    metrics.requests_waiting["batch"] = 0
    reporter.report()
    labels = (("model", "m"), ("instance", "m_0"))
    assert server.values["uzu_generated_tokens_total", labels] == 7
    assert server.values["uzu_requests_running", labels] == 0
    assert server.values["uzu_requests_waiting", (*labels, ("class", "batch"))] == 0


def test_times_are_those_of_the_clock():
    clock, waiting = ManualClock(), []

    class Slow(FakeExecutor):
        def start(self, plan, on_done):
            clock.now += 0.5
            waiting.append(dict(engine.metrics.requests_waiting))
            super().start(plan, on_done)

    engine = make_engine(Slow(), clock=clock, max_sequences=1)
    jobs = [(prompt(5), make_request(max_tokens=3, priority=priority)) for priority in (10, 20)]
    run(engine, *jobs)
    metrics = engine.metrics
    assert {"interactive": 0, "default": 0, "batch": 1} in waiting
    assert metrics.time_to_first_token_seconds.count == metrics.queue_seconds.count == 2
    assert metrics.time_to_first_token_seconds.total == pytest.approx(0.5 + 2.0)
    assert metrics.queue_seconds.total == pytest.approx(1.5)
    assert (metrics.inter_token_seconds.count, metrics.inter_token_seconds.total) == (4, pytest.approx(2.0))
    assert (metrics.step_seconds.count, metrics.step_seconds.total) == (6, pytest.approx(3.0))


def test_each_token_is_timed_once_also_when_guesses_reach_past_the_end():
    plain = run(make_engine(), (prompt(9), make_request(max_tokens=40)))[0].token_ids
    ends = [token for index, token in enumerate(plain) if index > 9 and token not in plain[:index]]
    timed = guessed_past_the_end = 0
    for end in ends:
        engine = make_engine(speculator=Oracle([prompt(9) + plain], wrong_every=50), end_token=end)
        (answer,) = run(engine, (prompt(9), make_request(max_tokens=40, ignore_eos=False)))
        metrics = engine.metrics
        assert answer.token_ids == plain[: plain.index(end) + 1]
        assert metrics.inter_token_seconds.count == metrics.generated_tokens - 1
        assert metrics.time_to_first_token_seconds.count == metrics.requests_finished["stop"] == 1
        timed += metrics.inter_token_seconds.count
        guessed_past_the_end += metrics.accepted_tokens.total() + metrics.step_seconds.count > len(
            answer.token_ids
        )
    assert timed > 50
    assert guessed_past_the_end > 0


def test_a_request_is_told_its_own_times_and_counts():
    clock = ManualClock()

    class Slow(FakeExecutor):
        def start(self, plan, on_done):
            clock.now += 0.25
            super().start(plan, on_done)

    engine = make_engine(Slow(), clock=clock, max_sequences=1, max_step_tokens=16)
    first, second = run(engine, *[(prompt(40), make_request(max_tokens=3))] * 2)
    assert first.chunks[-1].perf_metrics == {
        "queue_ms": 0,
        "prefill_ms": 750,
        "ttft_ms": 750,
        "decode_ms": 500,
        "steps": 5,
        "cached": 0,
        "preemptions": 0,
        "drafted": 0,
        "accepted": 0,
    }
    assert first.chunks[-1].perf_metrics.keys() == PERF_METRICS.keys()
    later = second.chunks[-1].perf_metrics
    assert (later["queue_ms"], later["ttft_ms"], later["cached"], later["steps"]) == (1250, 1500, 36, 3)
    assert engine.metrics.step_seconds.count == 8


@pytest.mark.parametrize(
    ("priority", "expected"), [(-5, "interactive"), (9, "interactive"), (10, "default"), (11, "batch")]
)
def test_priorities_have_classes(priority, expected):
    assert PriorityClass.of(priority) == expected

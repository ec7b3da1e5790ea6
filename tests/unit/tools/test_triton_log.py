from uzu.triton_log import explain_failure, is_noise, is_table

CUDA = 'E1201 04:39:43.06 7177 server.cc:241] "CudaDriverHelper has not been initialized."'
CANCELLED = (
    'E1201 06:14:31.67 4666 infer_handler.h:840] "[INTERNAL] HandleCancellation called even when the context '
    'was not cancelled for ModelStreamInferHandler, rpc_ok=1, context 0, 0 step COMPLETE"'
)
TABLE = [
    "I1201 06:11:45.877114 3740 server.cc:674] ",
    "+---------+---------+--------+",
    "| Model   | Version | Status |",
    "+---------+---------+--------+",
    "| smollm2 | 1       | READY  |",
    "+---------+---------+--------+",
    "",
]
FAILED = (
    "E1201 04:39:43.29 7177 model_lifecycle.cc:642] \"failed to load 'smollm2' version 1: Internal: "
    "OptionsError: unknown option 'lane'\\n\\nAt:\\n  /backends/uzu/model.py(8): <module>\\n\""
)
LOADING = 'I1201 04:39:43.06 7177 model_lifecycle.cc:472] "loading: smollm2:1"'


def test_the_cause_is_picked_from_tritons_log() -> None:
    lines = [LOADING, CUDA, FAILED, "error: creating server: Internal - failed to load all models", ""]
    assert explain_failure(lines) == (
        "failed to load 'smollm2' version 1: Internal: OptionsError: unknown option 'lane'"
    )
    assert explain_failure(["Killed", ""]) == "Killed"
    assert explain_failure([]) == "it said nothing"


def test_an_option_that_triton_refuses_is_the_cause() -> None:
    lines = [
        "/opt/bin/tritonserver: unrecognized option '--no-such'",
        "Usage: tritonserver [options]",
        "Default is 0.",
    ]
    assert explain_failure(lines) == "unrecognized option '--no-such'"


def test_noise_and_tables_are_no_cause() -> None:
    assert explain_failure(['E1201 04:39:43.06 7177 a.cc:1] "the cause"', CANCELLED, CUDA]) == "the cause"
    assert explain_failure([LOADING, CANCELLED, *TABLE]) == LOADING
    assert explain_failure([CUDA]) == "it said nothing"


def test_tables_and_noise_are_told_from_what_counts() -> None:
    assert all(map(is_table, TABLE))
    assert all(map(is_noise, (CUDA, CANCELLED)))
    for line in (LOADING, FAILED, "Error: Failed to initialize NVML", "a | b", "+1"):
        assert not is_table(line)
        assert not is_noise(line)

"""What of tritonserver's log a person needs to see, and which line of it names a cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ERROR_LINE = re.compile(r'^E\d{4} \S+ \d+ \S+\] "?(?P<text>.*?)"?$')
_BAD_OPTION = re.compile(r"tritonserver: (?P<text>.*\boption .*)$")
_TABLE = re.compile(r"^(\+-[-+]*\+|\|.*\||[IWE]\d{4} \S+ \d+ \S+\] ?|)$")
"""A table's line, the empty heading before it and the empty line behind it."""

# Triton says the first for every request that is answered with an error, the second wherever there is no GPU.
_NOISE = (
    "HandleCancellation called even when the context was not cancelled",
    "CudaDriverHelper has not been",
)


def is_noise(line: str) -> bool:
    """Whether a line tells nothing, although it is logged as an error."""
    return any(noise in line for noise in _NOISE)


def is_table(line: str) -> bool:
    """Whether a line belongs to the tables of options, backends and models, which are wider than screens."""
    return _TABLE.match(line.rstrip()) is not None


def explain_failure(lines: Sequence[str]) -> str:
    """The line that names the cause: a refused option, what failed to load, or else the last error."""
    told = [line.strip() for line in lines if line.strip() and not is_noise(line) and not is_table(line)]
    refused = next((match["text"] for line in told if (match := _BAD_OPTION.search(line))), None)
    if refused is not None:
        return refused
    errors = [match["text"] for line in told if (match := _ERROR_LINE.match(line))]
    loading = [text for text in errors if "failed to load" in text or "failed to poll" in text]
    chosen = [text for text in loading if "failed to load all models" not in text] or errors
    if chosen:
        return chosen[-1].partition("\\n\\nAt:")[0]
    return told[-1] if told else "it said nothing"

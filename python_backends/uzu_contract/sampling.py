"""Sampling parameters: one frozen type, decoded strictly from a JSON object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_contract.structured import StructuredOutputs, parse_structured_outputs

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_BAD_WORDS = 1024
GREEDY_BELOW = 1e-4
"""Dividing by less leaves one candidate anyway, and float32 cannot hold the quotients."""
MAX_LOGPROBS = 20
MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when a text ends.

    Logits go through `logit_bias` and `min_tokens`, then `repetition_penalty`, `frequency_penalty` and
    `presence_penalty`, then `bad_words`, then `temperature`, then `top_k`, `top_p`, `min_p` and `typical_p`,
    each of which takes what the one before it has left for the whole.

    Args:
        max_tokens: tokens to generate at most; None is what fits the context.
        temperature: 0 is greedy, and so is whatever is below `GREEDY_BELOW`; else logits are divided by it.
        top_p: keep the smallest set of tokens whose probability reaches it; 1 keeps all.
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one; 0 keeps all.
        typical_p: keep the tokens whose information is nearest to the expected one, until their probability
            reaches it; 1 keeps all.
        seed: same seed, same tokens; None draws one.
        stop: the text ends before the first of these strings.
        stop_token_ids: the text ends at the first of these tokens.
        ignore_eos: go on past the model's end-of-text tokens.
        min_tokens: do not stop by token before so many have been generated.
        presence_penalty: taken from the logits of tokens that were generated before.
        frequency_penalty: likewise, times how often.
        repetition_penalty: logits of tokens in the prompt or generated before are divided by it where they
            are positive, and multiplied where they are negative.
        logit_bias: (token id, what is added to its logit), by ascending id.
        bad_words: texts that must not be generated, nor after a space: where all tokens but the last of one
            have been, the last is not chosen.
        logprobs: how many of the likeliest tokens to report at each place, beside the one that was chosen;
            None reports nothing.
        prompt_logprobs: likewise for the tokens of the prompt, each given those before it.
        structured_outputs: the form that the text must have; only tokens that keep to it are chosen from.

    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def to_json_object(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as `parse_sampling` reads them."""
        defaults = SamplingParams()
        changed = {k: v for k, v in asdict(self).items() if v != getattr(defaults, k)}
        if "logit_bias" in changed:
            changed["logit_bias"] = {str(token): bias for token, bias in self.logit_bias}
        if self.structured_outputs is not None:
            changed["structured_outputs"] = self.structured_outputs.to_json_object()
        return changed


NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "top_logprobs": (0, None),
    "guided_decoding": (None,),
    "include_stop_str_in_output": (False, None),
    "skip_special_tokens": (True, None),
}
"""Known parameters that no backend here supports yet, and the values that ask for nothing."""


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise invalid(name, f"must be a number between {low:g} and {high:g}, not {_shown(value)}")
    if not low <= value <= high:
        raise invalid(name, f"must be between {low:g} and {high:g}, not {value:g}")
    return float(value)


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, f"must be an integer, not {_shown(value)}")
    if not low <= value <= high:
        raise invalid(name, f"must be between {low} and {high}, not {value}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _strings(name: str, value: object, most: int) -> tuple[str, ...]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) and s for s in strings):
        raise invalid(name, f"must be a non-empty string or a list of them, not {_shown(value)}")
    if len(strings) > most:
        raise invalid(name, f"takes at most {most} strings, not {len(strings)}")
    if any(len(s) > MAX_STOP_LENGTH for s in strings):
        raise invalid(name, f"takes strings of at most {MAX_STOP_LENGTH} characters")
    return tuple(strings)


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise invalid("stop_token_ids", f"must be a list of token ids, not {_shown(value)}")
    return tuple(_integer("stop_token_ids", v, 0, 2**31 - 1) for v in value)


def _top_k(value: object) -> int:
    return 0 if value == -1 and not isinstance(value, bool) else _integer("top_k", value, 0, 2**31 - 1)


def _repetition_penalty(value: object) -> float:
    penalty = _number("repetition_penalty", value, 0, 2)
    if penalty == 0:
        raise invalid("repetition_penalty", "must be greater than 0 and at most 2")
    return penalty


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise invalid("logit_bias", f"must be an object of token ids and numbers, not {_shown(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11 else -1
        if not 0 <= token <= MAX_TOKEN_ID:
            raise invalid("logit_bias", f"must have token ids as keys, not {_shown(key)}")
        if token in biases:
            raise invalid("logit_bias", f"names token {token} twice")
        try:
            biases[token] = _number("logit_bias", bias, -100, 100)
        except RequestError as error:
            raise invalid("logit_bias", f"{error.message.partition(': ')[2]} (token {token})") from None
    return tuple(sorted(biases.items()))


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, f"must be true or false, not {_shown(value)}")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "max_tokens": lambda v: _integer("max_tokens", v, 1, 2**31 - 1),
    "temperature": lambda v: _temperature(v),
    "top_p": lambda v: _share("top_p", v),
    "typical_p": lambda v: _share("typical_p", v),
    "top_k": _top_k,
    "min_p": lambda v: _number("min_p", v, 0, 1),
    "seed": lambda v: _integer("seed", v, -(2**63), 2**64 - 1),
    "stop": lambda v: _strings("stop", v, MAX_STOP_STRINGS),
    "stop_token_ids": _token_ids,
    "ignore_eos": lambda v: _boolean("ignore_eos", v),
    "min_tokens": lambda v: _integer("min_tokens", v, 0, 2**31 - 1),
    "presence_penalty": lambda v: _number("presence_penalty", v, -2, 2),
    "frequency_penalty": lambda v: _number("frequency_penalty", v, -2, 2),
    "repetition_penalty": _repetition_penalty,
    "logit_bias": _logit_bias,
    "bad_words": lambda v: _strings("bad_words", v, MAX_BAD_WORDS),
    "logprobs": lambda v: _integer("logprobs", v, 0, MAX_LOGPROBS),
    "prompt_logprobs": lambda v: _integer("prompt_logprobs", v, 0, MAX_LOGPROBS),
    "structured_outputs": parse_structured_outputs,
}


def _temperature(value: object) -> float:
    temperature = _number("temperature", value, 0, 100)
    return 0.0 if temperature < GREEDY_BELOW else temperature


def _share(name: str, value: object) -> float:
    share = _number(name, value, 0, 1)
    if share == 0:
        raise invalid(name, "must be greater than 0 and at most 1")
    return share


def is_neutral(name: str, value: object) -> bool:
    """Whether an unsupported parameter has a value that asks for nothing (true and 1 are told apart)."""
    return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in NEUTRAL_VALUES[name])


def parse_sampling(raw: Mapping[str, object]) -> SamplingParams:
    """Decode a JSON object. `null` means the default.

    Raises:
        RequestError: an unknown key, a wrong type, a value out of range (each names the key), or a known
            parameter that is not supported.

    """
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in NEUTRAL_VALUES:
            if not is_neutral(name, value):
                raise unsupported(name, "is not supported by this model")
        elif name not in _READERS:
            raise invalid(name, f"is not a sampling parameter; known: {', '.join(sorted(_READERS))}")
        elif value is not None:
            values[name] = _READERS[name](value)
    params = SamplingParams(**values)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise invalid("min_tokens", f"{params.min_tokens} is more than max_tokens ({params.max_tokens})")
    return params


SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))

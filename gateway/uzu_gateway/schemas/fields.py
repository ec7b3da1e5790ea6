"""Fields that completions and chat completions share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.sampling import MAX_STOP_STRINGS

MAX_CHOICES = 128


MODEL: Any = Field(
    default=None,
    description="a name from `/v1/models`; may be left out when one is served, or one is the default",
)


class StreamOptions(BaseModel):
    """What a stream carries beside its text."""

    model_config = ConfigDict(frozen=True, strict=True)

    include_usage: bool | None = Field(default=None, description="end with a chunk that has the token counts")


Unchecked = PlainValidator(lambda value: value, json_schema_input_type=str | list[str] | None)
"""The contract's own reader checks the value, and names the field as well."""
UncheckedObject = PlainValidator(lambda value: value, json_schema_input_type=dict[str, Any] | None)


class GenerationFields(BaseModel):
    """Types only: the ranges are the contract's, which is asked by the codec."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL
    max_tokens: int | None = Field(
        default=None, description="most tokens to generate; all that fit when left out"
    )
    max_completion_tokens: int | None = Field(default=None, description="newer name of `max_tokens`")
    temperature: float | None = Field(default=None, description="0 is greedy; 1 when left out")
    top_p: float | None = Field(default=None, description="keep the likeliest tokens up to this share")
    top_k: int | None = Field(
        default=None, description="keep so many of the likeliest tokens; 0 or -1 keeps all"
    )
    min_p: float | None = Field(
        default=None, description="drop tokens less likely than this share of the likeliest"
    )
    typical_p: float | None = Field(
        default=None, description="keep the tokens of about the expected information up to this share"
    )
    seed: int | None = Field(default=None, description="same seed, same text")
    stop: Annotated[Any, Unchecked] = Field(
        default=None, description=f"a string or up to {MAX_STOP_STRINGS} of them, before which the text ends"
    )
    stop_token_ids: list[int] | None = Field(default=None, description="tokens at which the text ends")
    ignore_eos: bool | None = Field(default=None, description="go on past the model's end of text")
    min_tokens: int | None = Field(default=None, description="fewest tokens before a stop token counts")
    n: int | None = Field(default=None, description=f"answers to each prompt, up to {MAX_CHOICES}")
    best_of: int | None = Field(
        default=None,
        description="for completions: make so many answers to each prompt and give the `n` likeliest, not "
        "with `stream`; for chats: the same as `n`, or left out",
    )
    presence_penalty: float | None = Field(
        default=None, description="-2 to 2; taken from the logits of tokens that were generated before"
    )
    frequency_penalty: float | None = Field(
        default=None, description="-2 to 2; likewise, times how often they were"
    )
    repetition_penalty: float | None = Field(
        default=None,
        description="up to 2; logits of tokens in the prompt or the answer are divided by it, or multiplied "
        "where they are negative; 1 changes nothing",
    )
    logit_bias: dict[str, float] | None = Field(
        default=None, description="token ids, as strings, and what is added to their logits: -100 to 100"
    )
    bad_words: list[str] | None = Field(
        default=None, description="words that are not written, as tokens; up to 1024 of them"
    )
    prompt_logprobs: int | None = Field(
        default=None,
        description="report the log-probability of each token of the prompt, and so many of the likeliest: "
        "0 to 20; not with `stream`",
    )
    response_format: Annotated[Any, UncheckedObject] = Field(
        default=None,
        description="`type` is `text`, `json_object`, or `json_schema` with a `schema` to keep to",
    )
    structured_outputs: Annotated[Any, UncheckedObject] = Field(
        default=None,
        description="an object with one of `json` (a schema), `json_object`, `regex`, `choice` and `grammar`",
    )
    guided_json: Annotated[Any, UncheckedObject] = Field(
        default=None, description="a JSON schema that the text keeps to"
    )
    guided_regex: str | None = Field(default=None, description="a regular expression that the text matches")
    guided_choice: list[str] | None = Field(default=None, description="strings, of which the text is one")
    guided_grammar: str | None = Field(default=None, description="a Lark grammar that the text keeps to")
    stream: bool | None = Field(default=None, description="send server-sent events")
    stream_options: StreamOptions | None = Field(
        default=None, description="only with `stream`; has `include_usage`"
    )
    cache_salt: str | None = Field(
        default=None, max_length=256, description="share cached prefixes only with requests of the same salt"
    )

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

"""Two turns of a chat, with the blocks of the first answer kept and not."""

from __future__ import annotations

from native_engine import real_engine

from uzu_contract.request import ChatPrompt
from uzu_contract.sampling import SamplingParams

BLOCK = 32
QUESTION = {"role": "user", "content": "Write the numbers from 1 to 40 in words, one a line."}
GREEDY = SamplingParams(max_tokens=100, temperature=0)


def two_turns(engine):
    """Lengths of the first prompt and of what was computed with its answer, and the second turn's answer."""
    first = engine.prompts.encode(ChatPrompt(messages=(QUESTION,)))
    answer = engine.run((first, GREEDY))[0]
    text = "".join(chunk.text for chunk in answer.chunks)
    turns = (QUESTION, {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."})
    second = engine.prompts.encode(ChatPrompt(messages=turns))
    known = [*first, *answer.token_ids]
    assert second[: len(known)] == known, "the answer is tokenized otherwise: choose another question"
    return len(first), len(known) - 1, engine.run((second, GREEDY))[0]


def test_the_next_turn_finds_the_answer_only_if_that_is_wanted(prepared_smollm2):
    with real_engine(prepared_smollm2, prefix_cache=False, split_lanes=False) as engine:
        _, _, cold = two_turns(engine)
    with real_engine(prepared_smollm2, split_lanes=False) as engine:
        prompt, computed, exact = two_turns(engine)
    assert computed // BLOCK > prompt // BLOCK + 1
    assert exact.chunks[-1].num_cached_tokens == prompt // BLOCK * BLOCK
    assert exact.token_ids == cold.token_ids
    with real_engine(prepared_smollm2, split_lanes=False, reuse_generated=True) as engine:
        _, _, reusing = two_turns(engine)
        assert reusing.chunks[-1].num_cached_tokens == computed // BLOCK * BLOCK
        assert engine.engine.metrics.accepted_tokens.total() > 0
    # Last bits may differ, and where two tokens are nearly as likely the token: but it is the same model.
    assert reusing.token_ids[:4] == cold.token_ids[:4]

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uzu_native.block_pool import BlockPool, chain_hashes


def test_allocate_and_release():
    pool = BlockPool(4, 8)
    blocks = pool.allocate(3)
    assert (pool.used, pool.available) == (3, 1)
    assert not pool.can_allocate(2)
    with pytest.raises(ValueError, match="2 blocks asked for, 1 available"):
        pool.allocate(2)
    pool.release(blocks)
    pool.check_integrity([])
    with pytest.raises(ValueError, match="not owned"):
        pool.release(blocks[:1])


def test_published_blocks_are_found_until_their_memory_is_needed():
    pool = BlockPool(3, 2)
    hashes = chain_hashes([1, 2, 3, 4, 5], 2, "")
    assert len(hashes) == 2
    blocks = pool.allocate(2)
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, block_hash)
    pool.release(blocks)
    assert pool.match(hashes) == 2
    assert pool.idle_among(hashes) == 2
    assert pool.acquire(hashes) == blocks
    assert pool.available == 1
    pool.release(blocks)
    pool.allocate(2)
    # The end of the prefix is evicted before its beginning.
    assert pool.match(hashes) == 1


def test_integrity_check_finds_a_leak():
    pool = BlockPool(2, 2)
    pool.allocate(1)
    with pytest.raises(RuntimeError, match="disagree"):
        pool.check_integrity([])


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 8), st.text(max_size=3))
def test_hashes_chain(tokens, block_size, salt):
    hashes = chain_hashes(tokens, block_size, salt)
    assert len(hashes) == len(tokens) // block_size
    assert chain_hashes([*tokens, 1], block_size, salt)[: len(hashes)] == hashes
    assert len(set(hashes)) == len(hashes)
    if hashes:
        assert chain_hashes(tokens, block_size, salt + "x")[0] != hashes[0]
        changed = [tokens[0] + 1, *tokens[1:]]
        assert set(chain_hashes(changed, block_size, salt)).isdisjoint(hashes)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(["take", "give", "publish", "share"]), st.integers(0, 7)), max_size=80)
)
def test_random_use_keeps_the_books(operations):
    pool = BlockPool(6, 4)
    owners: list[list[int]] = []
    serial = 0
    published: list[bytes] = []
    for operation, number in operations:
        if operation == "take" and pool.can_allocate(number):
            owners.append(pool.allocate(number))
        elif operation == "give" and owners:
            pool.release(owners.pop(number % len(owners)))
        elif operation == "publish" and owners and owners[-1]:
            serial += 1
            published.append(str(serial).encode())
            pool.publish(owners[-1][number % len(owners[-1])], published[-1])
        elif operation == "share" and published:
            wanted = published[number % len(published) :][:1]
            if pool.match(wanted) == 1:
                owners.append(pool.acquire(wanted))
        pool.check_integrity(owners)
    for blocks in owners:
        pool.release(blocks)
    pool.check_integrity([])
    assert pool.available == 6

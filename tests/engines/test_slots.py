"""Who sits where in the cache."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from midthought.engines.local.kv_cache import MIN_SHARED_TOKENS, Slots, num_common

LATER = float("inf")


def test_a_slot_is_free_then_new_then_that_of_the_longest_unused():
    slots = Slots(2)
    for now, episode in enumerate((10, 11)):
        assert slots.acquire(episode, [], set(), unused_since=LATER)
        slots.set_tokens(episode, [1, 2, 3], now=now)
    assert (slots.slot(10), slots.slot(11)) == (0, 1)
    assert not slots.acquire(12, [], {10, 11}, unused_since=LATER)
    assert not slots.acquire(12, [], set(), unused_since=-1)
    slots.set_tokens(10, [1], now=5)
    assert slots.acquire(12, [], set(), unused_since=LATER)
    assert (slots.slot(12), slots.num_evicted) == (1, 1)
    assert 11 not in slots
    slots.release(10)
    assert slots.acquire(13, [], {12}, unused_since=-1)
    assert slots.slot(13) == 0


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)), st.integers(0, 20))
def test_common_tokens_are_counted_where_they_are_more_than_asked_for(some, others, more_than):
    pairs = zip(some, others, strict=False)
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert num_common(some, others, more_than=more_than) == (common if common > more_than else 0)


def test_what_was_left_in_a_slot_is_built_upon_where_it_is_worth_it():
    enough, too_few = list(range(MIN_SHARED_TOKENS)), list(range(MIN_SHARED_TOKENS - 1))
    slots = Slots(3)
    for episode, left in enumerate(([*too_few, 90], [*enough, 91], [*enough, 92, 93])):
        slots.acquire(episode, left, set(), unused_since=LATER)
        slots.set_tokens(episode, left, now=0)
    for episode in range(3):
        slots.release(episode, keep_tokens=True)
    wanted = [*enough, 92, 94, 95]
    assert slots.acquire(3, wanted, set(), unused_since=LATER)
    assert (slots.slot(3), slots.num_cached(3, wanted)) == (2, MIN_SHARED_TOKENS + 1)
    others = [*too_few, 96, 97]
    assert slots.acquire(4, others, set(), unused_since=LATER)
    assert (slots.slot(4), slots.num_cached(4, others)) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(num_slots=st.integers(1, 30), data=st.data())
def test_compacting_keeps_every_episodes_tokens_and_leaves_few_holes(num_slots, data):
    slots = Slots(num_slots)
    cells = [-1] * (num_slots + 1)  # what stands in each slot, the scratch slot included
    for episode in range(num_slots):
        slots.acquire(episode, [], set(), unused_since=LATER)
        slots.set_tokens(episode, [episode], now=episode)
        cells[slots.slot(episode)] = episode
    kinds = data.draw(st.lists(st.sampled_from(["running", "idle", "gone"]), min_size=num_slots, max_size=num_slots))
    for episode, kind in enumerate(kinds):
        if kind == "gone":
            slots.release(episode)
    running = [episode for episode, kind in enumerate(kinds) if kind == "running"]
    for source, target, num_tokens in slots.compact(dict.fromkeys(running, 1)):
        assert num_tokens == 1
        cells[target] = cells[source]
    taken = [slots.slot(episode) for episode, kind in enumerate(kinds) if kind != "gone"]
    assert len(set(taken)) == len(taken)
    assert all(cells[slots.slot(episode)] == episode for episode, kind in enumerate(kinds) if kind != "gone")
    if running:
        assert max(slots.slot(episode) for episode in running) < len(running) + len(running) // 4 + 4

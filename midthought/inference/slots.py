"""Who sits in which slot of the cache, and which tokens are cached there. Knows no tensors: copies are only named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet


class Slots:
    """Slots for up to `max_num_slots` episodes. Low numbers are given first: running sequences stand together."""

    def __init__(self, max_num_slots: int) -> None:
        self.max_num_slots = max_num_slots
        self.num_evicted = 0
        self._slot_of: dict[int, int] = {}
        """Episode to slot; in the order of last use, the longest unused first."""
        self._episode_in: list[int | None] = []
        self._tokens: dict[int, list[int]] = {}
        self._last_used: dict[int, float] = {}

    def __contains__(self, episode: int) -> bool:
        return episode in self._slot_of

    def slot(self, episode: int) -> int:
        return self._slot_of[episode]

    def acquire(self, episode: int, busy: AbstractSet[int], *, unused_since: float) -> bool:
        """See that the episode has a slot: its own, a free one, a new one, or that of the episode that is not busy and
        was unused the longest, at least since `unused_since`. False where there is none."""
        if episode in self._slot_of:
            return True
        if None in self._episode_in:
            slot = self._episode_in.index(None)
        elif len(self._episode_in) < self.max_num_slots:
            slot = len(self._episode_in)
            self._episode_in.append(None)
        else:
            idle = next((other for other in self._slot_of if other not in busy), None)
            if idle is None or self._last_used[idle] > unused_since:
                return False
            slot = self._slot_of[idle]
            self.release(idle)
            self.num_evicted += 1
        self._slot_of[episode], self._episode_in[slot], self._tokens[episode] = slot, episode, []
        return True

    def release(self, episode: int) -> None:
        """Free the episode's slot, where it has one."""
        slot = self._slot_of.pop(episode, None)
        if slot is not None:
            self._episode_in[slot] = None
            del self._tokens[episode]
            self._last_used.pop(episode, None)

    def num_common(self, episode: int, token_ids: Sequence[int]) -> int:
        """How many of the first tokens stand in the cache; at most all but the last, whose logits are wanted."""
        cached = self._tokens[episode]
        most = min(len(cached), len(token_ids) - 1)
        if cached[:most] == token_ids[:most]:
            return most
        return next(index for index in range(most) if cached[index] != token_ids[index])

    def set_tokens(self, episode: int, token_ids: Sequence[int], *, now: float) -> None:
        """These tokens now stand in the episode's slot; it is the last used one."""
        self._tokens[episode] = list(token_ids)
        self._last_used[episode] = now
        self._slot_of[episode] = self._slot_of.pop(episode)

    def forget_tokens(self) -> None:
        """Nothing that is cached counts any more; the episodes keep their slots."""
        self._tokens = {episode: [] for episode in self._tokens}

    def compact(self, num_running_tokens: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Move running episodes down where too many slots below the highest take no part (more than a fifth).

        Args:
            num_running_tokens: the running episodes, and how many tokens of each are cached.

        Returns:
            (source, target, number of tokens) of each copy, to be done in this order. The slot after the last one is
            scratch.
        """
        running_slots = {self._slot_of[episode] for episode in num_running_tokens}
        num_running = len(running_slots)
        if not running_slots or max(running_slots) < num_running + num_running // 4 + 4:
            return []
        copies: list[tuple[int, int, int]] = []
        scratch = len(self._episode_in)
        holes = [slot for slot in range(num_running) if slot not in running_slots]
        outside = sorted(slot for slot in running_slots if slot >= num_running)
        for source, target in zip(outside, holes, strict=True):
            mover, idle = self._episode_in[source], self._episode_in[target]
            assert mover is not None
            if idle is None:
                copies.append((source, target, num_running_tokens[mover]))
            else:
                num_idle_tokens = len(self._tokens[idle])
                copies += [
                    (target, scratch, num_idle_tokens),
                    (source, target, num_running_tokens[mover]),
                    (scratch, source, num_idle_tokens),
                ]
                self._slot_of[idle] = source
            self._episode_in[source], self._episode_in[target] = idle, mover
            self._slot_of[mover] = target
        return copies

"""The central record, `Trajectory`: the rollout writes it, the learner reads it.

Does not depend on tokenizers, models or tools: token ids are integers, log-probabilities are floats.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from midthought.errors import RecordError
from midthought.types.segment import Completion, Segment, Span, SpanKind
from midthought.types.task import Reward, Task
from midthought.types.turn import StopReason, ToolEvent, Turn


def _by_turn(compute: Callable[[Any], list[Any]]) -> property:
    """A list with one entry per turn: computed from the turns, or filled by hand in a record without tokens."""
    name = compute.__name__

    def read(record: Trajectory) -> list[Any]:
        by_hand = record.lists_by_hand
        return compute(record) if by_hand is None else by_hand.setdefault(name, [])

    def write(record: Trajectory, values: list[Any]) -> None:
        if record.lists_by_hand is None:
            raise RecordError(
                f"task {record.task.task_id!r}: {name} follow from the recorded turns; fill a Trajectory() by hand"
            )
        record.lists_by_hand[name] = values

    return property(read, write, doc=compute.__doc__)


class Trajectory:
    """Record of one episode's tokens. Only the method that appended a token determines whether it is trained on.

    Trained on: `add_sampled`, and `add_demonstrated` (written for the policy, for SFT). Context: `begin_segment` (a prompt),
    `add_results`, `add_reply`.

    Examples:
        >>> from midthought.types import Completion, Finish, Task, ToolCall, ToolEvent, ToolOutcome
        >>> trajectory = Trajectory(Task(task_id="t", prompt="Who?", answer="Ada"), prompt_ids=[1, 2])
        >>> trajectory.add_sampled(Completion(token_ids=(5, 6), sampled_logprobs=(-0.1, -0.2), finish=Finish.CALL))
        >>> event = ToolEvent(call=ToolCall(tool_name="search", success=True, result="Ada"), outcome=ToolOutcome.OK)
        >>> trajectory.add_results([event], token_ids=[7, 8, 9])
        >>> trajectory.add_sampled(Completion(token_ids=(3,), sampled_logprobs=(-0.3,), finish=Finish.END))
        >>> trajectory.token_ids, trajectory.loss_mask
        ([1, 2, 5, 6, 7, 8, 9, 3], [False, False, True, True, False, False, False, True])
    """

    lists_by_hand: dict[str, list[Any]] | None = None
    """The lists of a record without tokens, by name; None for a record of tokens."""

    def __init__(
        self, task: Task | None = None, prompt_ids: Sequence[int] = (), *, seed: int = 0, group: int = 0
    ) -> None:
        """Without a task and a prompt, the record carries no tokens: `states`, `actions`, `rewards`, `dones` and `log_probs`
        are lists to fill by hand. It cannot be trained on."""
        by_hand = task is None and not len(prompt_ids)
        if by_hand:
            self.lists_by_hand = {}
        self.task = Task(task_id="by hand", prompt="", answer="") if task is None else task
        self.seed = seed
        """Seed of this episode's sampling; token n of the episode is drawn with (seed, n)."""
        self.group = group
        """Episodes of one group share a task (GRPO)."""
        self.segments: list[Segment] = []
        self.tool_events: list[ToolEvent] = []
        self.stop_reason: StopReason | None = None
        self.error: str | None = None
        self.reward: Reward | None = None
        self.num_cut = 0
        self.tool_seconds = 0.0
        """Wall-clock seconds that the episode waited for tools; concurrent calls count once."""
        self.engine_seconds = 0.0
        """Wall-clock seconds that the episode waited for the engine, including its queue."""
        self.turns: list[Turn] = []
        """The policy's finished answers, in order."""
        self.turn_ends: list[tuple[int, int]] = []
        """(segment, index of the last policy token) of every turn; this token gets the turn's reward."""
        self.call_ends: list[tuple[int, int]] = []
        """(segment, index of the last policy token before the result) of every tool event; this token gets the call's reward.
        Calls with one place, such as parallel calls, are one step. The index is -1 without such a token."""
        self.values: list[float] = []
        """Critic's value before the first policy token of every turn; empty until a critic has scored the episode."""
        if not by_hand:
            self.begin_segment(prompt_ids)

    # -- filling -----------------------------------------------------------------------------------------------

    def begin_segment(self, prompt_ids: Sequence[int]) -> None:
        """Starts a new segment (the first one, or after a chat template rewrote history)."""
        if not prompt_ids:
            raise RecordError(f"task {self.task.task_id!r}: a segment needs at least one prompt token, got none")
        self._require_open()
        self.segments.append(Segment())
        self._add_context(SpanKind.PROMPT, prompt_ids)

    def add_sampled(self, completion: Completion, *, temperature: float = 1.0) -> None:
        """Appends sampled tokens with their log-probabilities; mask True.

        `temperature` is the requested one; the completion's own temperature, if set, has priority. Greedily sampled tokens
        (temperature 0) are recorded at temperature 1. Raises `RecordError` if it is negative or not finite.
        """
        temperature = (temperature if completion.temperature is None else completion.temperature) or 1.0
        if not 0 < temperature < math.inf:
            raise RecordError(
                f"task {self.task.task_id!r}: tokens sampled at temperature {temperature}; give a finite one above 0"
            )
        if len(completion.token_ids) != len(completion.sampled_logprobs):
            raise RecordError(
                f"task {self.task.task_id!r}: {len(completion.token_ids)} sampled tokens "
                f"but {len(completion.sampled_logprobs)} log-probabilities"
            )
        self._require_open()
        self._current.append(
            SpanKind.SAMPLED, completion.token_ids, completion.sampled_logprobs, completion.policy_version, temperature
        )
        self.num_cut += completion.num_cut

    def add_demonstrated(self, token_ids: Sequence[int]) -> None:
        """Appends tokens that a demonstration writes for the policy: mask True, log-probabilities NaN."""
        self._require_open()
        self._current.append(SpanKind.SAMPLED, token_ids, [math.nan] * len(token_ids))

    def add_results(self, events: Sequence[ToolEvent], token_ids: Sequence[int]) -> None:
        """Appends the rendered results of `events`; mask False."""
        if not events:
            raise RecordError(f"task {self.task.task_id!r}: results without any tool event")
        self._require_open()
        self.tool_events.extend(events)
        self.call_ends += [self._last_place()] * len(events)
        self._add_context(SpanKind.RESULT, token_ids)

    def add_reply(self, token_ids: Sequence[int]) -> None:
        """Appends a reply of the environment or the user, or a demonstrated answer that is not trained on; mask False."""
        self._require_open()
        self._add_context(SpanKind.REPLY, token_ids)

    def end_turn(self, turn: Turn) -> None:
        """Ends the turn: all policy tokens since the end of the last turn belong to it."""
        self._require_open()
        place = self._last_place()
        if place <= (self.turn_ends[-1] if self.turn_ends else (0, -1)):
            raise RecordError(f"task {self.task.task_id!r}: turn {turn.turn_number} holds no policy token")
        self.turns.append(turn)
        self.turn_ends.append(place)

    def _last_place(self) -> tuple[int, int]:
        """Returns (segment, index) of the latest policy token, (0, -1) if there is none."""
        for number in reversed(range(len(self.segments))):
            mask = self.segments[number].loss_mask
            for index in reversed(range(len(mask))):
                if mask[index]:
                    return number, index
        return 0, -1

    def _add_context(self, kind: SpanKind, token_ids: Sequence[int]) -> None:
        self._current.append(kind, token_ids, [math.nan] * len(token_ids))

    def require_tokens(self) -> None:
        """Raises `RecordError` if the record was filled by hand."""
        if not self.segments:
            raise RecordError(
                "this Trajectory was filled by hand and carries no tokens, so it cannot be trained on; train on the episodes of "
                "Trainer.rollout(), MultiTurnInferenceEngine or run_episodes"
            )

    @property
    def _current(self) -> Segment:
        self.require_tokens()
        return self.segments[-1]

    def _require_open(self) -> None:
        if self.stop_reason is not None:
            raise RecordError(
                f"task {self.task.task_id!r}: the episode has ended ({self.stop_reason}); nothing can be added"
            )

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """Token ids of the current (last) segment, which the engine continues."""
        return self._current.token_ids

    @property
    def loss_mask(self) -> list[bool]:
        """True for the tokens that the policy wrote, in the current segment."""
        return self._current.loss_mask

    @property
    def sampled_logprobs(self) -> list[float]:
        """Log-probabilities of the sampled tokens in the current segment, NaN elsewhere."""
        return self._current.sampled_logprobs

    @property
    def spans(self) -> list[Span]:
        return self._current.spans

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy wrote, over all segments."""
        return sum(sum(segment.loss_mask) for segment in self.segments)

    @property
    def num_response(self) -> int:
        """Number of tokens after the prompts: policy, tools and replies, over all segments."""
        return sum(len(segment.token_ids) - segment.spans[0].end for segment in self.segments)

    @property
    def num_calls(self) -> int:
        """Number of requested calls, with any outcome."""
        return len(self.tool_events)

    # -- reading by turn ---------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        reward = None if self.reward is None else self.reward.total
        sizes = f"{len(self.segments)} segments, {self.num_sampled} policy tokens"
        return f"<Trajectory: task {self.task.task_id!r}, reward {reward}, {sizes}>"

    def __len__(self) -> int:
        """Number of turns."""
        return len(self.turns if self.lists_by_hand is None else self.actions)

    def __bool__(self) -> bool:
        return True

    @_by_turn
    def states(self) -> list[str]:
        """Input of the policy by turn: the prompt, then the replies."""
        return [self.task.prompt, *(turn.observation or "" for turn in self.turns[:-1])][: len(self.turns)]

    @_by_turn
    def actions(self) -> list[str]:
        """The policy's text by turn."""
        return [turn.model_output for turn in self.turns]

    @_by_turn
    def rewards(self) -> list[float]:
        """Reward by turn, with the rewards of its calls; the episode's reward is added to the last turn. Before
        scoring: the environment's rewards."""
        if self.reward is None:
            return [turn.reward for turn in self.turns]
        by_turn = [*self.reward.turns, *[0.0] * (len(self.turns) - len(self.reward.turns))]
        if by_turn:
            for end, amount in zip(self.call_ends, self.reward.calls, strict=False):
                by_turn[min(bisect.bisect_left(self.turn_ends, end), len(by_turn) - 1)] += amount
            by_turn[-1] += math.fsum(self.reward.parts.values())
        return by_turn

    @_by_turn
    def dones(self) -> list[bool]:
        """True at the turn that ended the episode."""
        return [turn.done for turn in self.turns]

    @_by_turn
    def log_probs(self) -> list[float]:
        """Log-probability of every turn: the sum over its policy tokens, as sampled."""
        sampled = [
            ((number, index), segment.sampled_logprobs[index])
            for number, segment in enumerate(self.segments)
            for index, flag in enumerate(segment.loss_mask)
            if flag
        ]
        turns = itertools.pairwise([(0, -1), *self.turn_ends])
        return [math.fsum(each for place, each in sampled if begin < place <= end) for begin, end in turns]

    def get_return(self, gamma: float = 1.0) -> float:
        """Computes the discounted return of the turns' rewards: `Σ γ^t r_t`."""
        return math.fsum(gamma**t * reward for t, reward in enumerate(self.rewards))

    # -- reading by token --------------------------------------------------------------------------------------

    def sampled_runs(self) -> list[list[int]]:
        """Returns the sampled tokens of all segments, one list per contiguous run."""
        return [run for segment in self.segments for run in segment.sampled_runs()]

    def check(self) -> None:
        """Raises `RecordError` if an invariant is violated: spans tile the tokens, the mask follows from the spans."""
        self.require_tokens()
        for number, segment in enumerate(self.segments):
            segment.check(f"task {self.task.task_id!r}, segment {number}")

"""Records that all packages share. The central one is `Trajectory`: the rollout writes it, the learner reads it.

Does not depend on tokenizers, models or tools: token ids are integers, log-probabilities are floats.
"""

from __future__ import annotations

import bisect
import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Self, TypeVar, overload

from midthought.errors import RecordError

Item = TypeVar("Item")


class StopReason(enum.StrEnum):
    """Why an episode ended. Every episode has exactly one reason, set once."""

    ANSWERED = "answered"
    """The policy ended its answer (end-of-sequence) and got no reply."""
    LENGTH = "length"
    """The token budget was used up before the answer ended."""
    MAX_TURNS = "max_turns"
    """The limit on turns was reached."""
    FAILED = "failed"
    """The episode failed (engine, environment); the error is in `Trajectory.error`."""
    CANCELLED = "cancelled"
    """The run was stopped."""

    @property
    def is_truncated(self) -> bool:
        """Whether the episode was ended by something other than the policy."""
        return self is not StopReason.ANSWERED


class Finish(enum.StrEnum):
    """Why one call of `engine.sample` ended."""

    CALL = "call"
    """The stopper found the end of a call inside the last token."""
    END = "end"
    """An end-of-sequence token was sampled; it is the last of `token_ids`."""
    LENGTH = "length"
    """`max_tokens` were sampled."""


class SpanKind(enum.StrEnum):
    """Origin of a run of tokens. It determines the loss mask: only SAMPLED tokens are trained on."""

    PROMPT = "prompt"
    SAMPLED = "policy"
    RESULT = "tool"
    REPLY = "reply"


class ToolOutcome(enum.StrEnum):
    """Outcome of a tool call. Anything but `OK` is returned to the model as an error message."""

    OK = "ok"
    MALFORMED = "malformed"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"
    """The tool was not called: after repeated failures it is disabled for some time."""
    NO_CALLS_LEFT = "no_calls_left"


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One question (or start of an episode) with the data needed to judge it.

    `labels` are only for metrics and demonstrations (`needs_memory`, `kind`, …). No reward may read them, except `dataset`,
    which determines how answers are checked.
    """

    task_id: str
    prompt: str
    """The user's message. It is foreign text: it is encoded without control tokens."""
    answer: str
    """The ground truth."""
    aliases: tuple[str, ...] = ()
    """Other correct answers."""
    labels: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    """Ids of the memory's chunks that prove the answer."""
    before: tuple[Mapping[str, str], ...] = ()
    """Messages before the prompt, with `role` and `content`, a system message first; also foreign text."""

    def messages(self, *system: str) -> list[Mapping[str, str]]:
        """Returns the messages before the policy's first answer; they start with `system`, without blank ones.

        >>> Task(task_id="t", prompt="1 + 1?", answer="2").messages("Be short.")
        [{'role': 'system', 'content': 'Be short.'}, {'role': 'user', 'content': '1 + 1?'}]
        """
        before = list(self.before)
        said = [*system, before.pop(0)["content"]] if before and before[0]["role"] == "system" else system
        words = "\n\n".join(filter(None, said))
        head = [{"role": "system", "content": words}] if words else []
        return [*head, *before, {"role": "user", "content": self.prompt}]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "labels": dict(self.labels)}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Task:
        fields = dict(row)
        fields["aliases"] = tuple(fields.get("aliases", ()))
        fields["evidence"] = tuple(fields.get("evidence", ()))
        fields["before"] = tuple(fields.get("before", ()))
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """Result of one call of `engine.sample`: token ids and their log-probabilities under the sampling distribution."""

    token_ids: tuple[int, ...]
    sampled_logprobs: tuple[float, ...]
    finish: Finish
    policy_version: int = 0
    num_cut: int = 0
    """Number of tokens that a server sampled after the end of the call and that were cut."""
    temperature: float | None = None
    """Temperature of the distribution of `sampled_logprobs`. None: the requested temperature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedAction:
    """A call found in a text. `success` is False if it cannot be run; by default it is True with a name and without an error."""

    tool_name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    raw_text: str = ""
    success: bool = None  # type: ignore[assignment]
    error: str | None = None
    call_id: str | None = None
    """The call's id, if the policy wrote one."""

    def __post_init__(self) -> None:
        if self.success is None:
            object.__setattr__(self, "success", self.tool_name is not None and self.error is None)


@dataclass(kw_only=True, slots=True)
class ToolCall:
    """An executed call with its result. Empty and falsy if there was no call."""

    tool_name: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    success: bool | None = None
    result: str | None = None
    """Text for the model: the tool's result or the error message."""

    def __bool__(self) -> bool:
        return self.tool_name is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolEvent:
    """Record of one call, from which rewards and metrics are computed."""

    call: ToolCall
    outcome: ToolOutcome
    seconds: float = 0.0
    """Wall-clock seconds from the request to the result, including waiting."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further data from the tool, for example the ids of the chunks that it found. JSON values only."""


@dataclass(kw_only=True, slots=True)
class Turn:
    """One answer of the policy, from one reply (or the prompt) to the next, including its thoughts and calls.

    >>> turn = Turn(turn_number=1, model_output="Hello.")
    >>> turn["model_output"], turn["turn"]
    ('Hello.', 1)
    """

    turn_number: int = 1
    """1, 2, …"""
    model_output: str = ""
    """The policy's text, without tool results."""
    answer: str | None = None
    """The answer in `model_output` if the chat template marks it (gpt-oss: the channel `final`); None: the text after the
    thought."""
    begins_in_thought: bool = False
    """Whether the chat template opened the thought that the policy continues."""
    parsed_action: ParsedAction | None = None
    """The first call of the turn; None if there was none."""
    tool_call: ToolCall = field(default_factory=ToolCall)
    """The executed first call with its result; empty and falsy if there was no call."""
    observation: str | None = None
    """Reply of the environment or the user; None if there was none. In a conversation by hand, of a turn with calls: the
    results."""
    reward: float = 0.0
    """Reward from the environment for this turn."""
    done: bool = False
    """Whether the episode ended with this turn."""

    def __getitem__(self, name: str) -> Any:
        """Returns the field of that name, as in the setup package's summaries; `turn` is the turn number."""
        if name == "turn":
            return self.turn_number
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """An episode's reward: `total` is the sum of `parts` (already weighted), `turns` and `calls`.

    The parts are credited to the episode's last policy token, `turns[i]` to the last policy token of turn i, `calls[i]` (for
    `trajectory.tool_events[i]`) to the last policy token before the result of call i.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[float, ...] = ()
    calls: tuple[float, ...] = ()

    @property
    def total(self) -> float:
        return math.fsum((*self.parts.values(), *self.turns, *self.calls))


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start:end` of a segment, all of one kind and, if the policy sampled them, of one temperature."""

    kind: SpanKind
    start: int
    end: int
    temperature: float = 1.0
    """Temperature of the distribution of the tokens' log-probabilities; 1 for tokens that were not sampled."""


@dataclass(slots=True)
class Segment:
    """One append-only sequence of tokens. All lists except the spans are as long as `token_ids`."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    """NaN for tokens without a recorded log-probability (context, demonstrations)."""
    policy_versions: list[int] = field(default_factory=list)
    """Version of the policy that sampled the token; -1 if it was not sampled. An episode that was carried over from one
    iteration to the next has tokens of several versions."""
    spans: list[Span] = field(default_factory=list)

    def _append(
        self,
        kind: SpanKind,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        policy_version: int = -1,
        temperature: float = 1.0,
    ) -> None:
        if not token_ids:
            return
        start, end = len(self.token_ids), len(self.token_ids) + len(token_ids)
        self.token_ids.extend(token_ids)
        self.sampled_logprobs.extend(logprobs)
        self.policy_versions.extend([policy_version] * len(token_ids))
        self.loss_mask.extend([kind is SpanKind.SAMPLED] * len(token_ids))
        last = self.spans[-1] if self.spans else None
        if last and last.kind is kind is SpanKind.SAMPLED and last.temperature == temperature:
            self.spans[-1] = Span(kind, last.start, end, temperature)
        else:
            self.spans.append(Span(kind, start, end, temperature))

    def sampled_runs(self, start: int = 0) -> list[list[int]]:
        """Returns the sampled tokens from index `start` on, one list per contiguous run, independent of temperature."""
        runs: list[list[int]] = []
        end = -1
        for span in self.spans:
            if span.kind is SpanKind.SAMPLED and span.start >= start:
                token_ids = self.token_ids[span.start : span.end]
                runs = [*runs[:-1], runs[-1] + token_ids] if span.start == end else [*runs, token_ids]
                end = span.end
        return runs


class TurnList(Generic[Item]):
    """A list of a `Trajectory` with one entry per turn: computed from the turns, or filled by hand in a record without tokens."""

    def __init__(self, compute: Callable[[Any], list[Item]]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, record: None, owner: type) -> Self: ...

    @overload
    def __get__(self, record: Trajectory, owner: type) -> list[Item]: ...

    def __get__(self, record: Trajectory | None, owner: type) -> Self | list[Item]:
        if record is None:
            return self
        by_hand = record.lists_by_hand
        return self._compute(record) if by_hand is None else by_hand.setdefault(self._name, [])

    def __set__(self, record: Trajectory, values: list[Item]) -> None:
        if record.lists_by_hand is None:
            raise RecordError(
                f"task {record.task.task_id!r}: {self._name} follow from the recorded turns; fill a Trajectory() by hand"
            )
        record.lists_by_hand[self._name] = values


class Trajectory:
    """Record of one episode's tokens, filled only by `add_sampled`, `add_results` and `add_reply`.

    Only the method that appended a token determines whether it is trained on. The same record is used for SFT
    demonstrations (`add_demonstrated` appends tokens that were written for the policy).

    >>> trajectory = Trajectory(Task(task_id="t", prompt="Who?", answer="Ada"), prompt_ids=[1, 2])
    >>> trajectory.add_sampled(Completion(token_ids=(5, 6), sampled_logprobs=(-0.1, -0.2), finish=Finish.CALL))
    >>> event = ToolEvent(call=ToolCall(tool_name="look", success=True, result="Ada"), outcome=ToolOutcome.OK)
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
        self.policy_versions: list[int] = []
        """Policy version of every completion, in order."""
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
        self._current._append(
            SpanKind.SAMPLED,
            completion.token_ids,
            completion.sampled_logprobs,
            completion.policy_version,
            temperature,
        )
        self.policy_versions.append(completion.policy_version)
        self.num_cut += completion.num_cut

    def add_demonstrated(self, token_ids: Sequence[int]) -> None:
        """Appends tokens that a demonstration writes for the policy: mask True, log-probabilities NaN."""
        self._require_open()
        self._current._append(SpanKind.SAMPLED, token_ids, [math.nan] * len(token_ids))

    def add_results(self, events: Sequence[ToolEvent], token_ids: Sequence[int]) -> None:
        """Appends the rendered results of `events`; mask False."""
        if not events:
            raise RecordError(f"task {self.task.task_id!r}: results without any tool event")
        self._require_open()
        self.tool_events.extend(events)
        self.call_ends += [self._last_place()] * len(events)
        self._add_context(SpanKind.RESULT, token_ids)

    def add_reply(self, token_ids: Sequence[int]) -> None:
        """Appends a reply of the environment or the user; mask False."""
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
        self._current._append(kind, token_ids, [math.nan] * len(token_ids))

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

    @property
    def policy_version(self) -> int:
        """Policy version of the last completion, which is the newest; 0 if there is none."""
        return self.policy_versions[-1] if self.policy_versions else 0

    # -- reading by turn ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of turns."""
        return len(self.turns if self.lists_by_hand is None else self.actions)

    def __bool__(self) -> bool:
        return True

    @TurnList
    def states(self) -> list[str]:
        """Input of the policy by turn: the prompt, then the replies."""
        return [self.task.prompt, *(turn.observation or "" for turn in self.turns[:-1])][: len(self.turns)]

    @TurnList
    def actions(self) -> list[str]:
        """The policy's text by turn."""
        return [turn.model_output for turn in self.turns]

    @TurnList
    def rewards(self) -> list[float]:
        """Reward by turn, with the rewards of its calls; the episode's reward is added to the last turn. Before scoring: the
        environment's rewards."""
        if self.reward is None:
            return [turn.reward for turn in self.turns]
        by_turn = [*self.reward.turns, *[0.0] * (len(self.turns) - len(self.reward.turns))]
        if by_turn:
            for end, amount in zip(self.call_ends, self.reward.calls, strict=False):
                by_turn[min(bisect.bisect_left(self.turn_ends, end), len(by_turn) - 1)] += amount
            by_turn[-1] += math.fsum(self.reward.parts.values())
        return by_turn

    @TurnList
    def dones(self) -> list[bool]:
        """True at the turn that ended the episode."""
        return [turn.done for turn in self.turns]

    @TurnList
    def log_probs(self) -> list[float]:
        """Log-probability of every turn: the sum over its policy tokens, as sampled."""
        sums, begin = [], (0, -1)
        for end in self.turn_ends:
            sums.append(math.fsum(self._logprobs_between(begin, end)))
            begin = end
        return sums

    def get_return(self, gamma: float = 1.0) -> float:
        """Computes the discounted return of the turns' rewards: `Σ γ^t r_t`."""
        return math.fsum(gamma**t * reward for t, reward in enumerate(self.rewards))

    def _logprobs_between(self, begin: tuple[int, int], end: tuple[int, int]) -> list[float]:
        return [
            logprob
            for number, segment in enumerate(self.segments)
            for index, (logprob, flag) in enumerate(zip(segment.sampled_logprobs, segment.loss_mask, strict=True))
            if flag and begin < (number, index) <= end
        ]

    # -- reading by token --------------------------------------------------------------------------------------

    def sampled_runs(self) -> list[list[int]]:
        """Returns the sampled tokens of all segments, one list per contiguous run."""
        return [run for segment in self.segments for run in segment.sampled_runs()]

    def check(self) -> None:
        """Raises `RecordError` if an invariant is violated: spans tile the tokens, the mask follows from the spans."""
        self.require_tokens()
        for number, segment in enumerate(self.segments):
            where = f"task {self.task.task_id!r}, segment {number}"
            columns = (segment.token_ids, segment.loss_mask, segment.sampled_logprobs, segment.policy_versions)
            lengths = {len(column) for column in columns}
            if len(lengths) != 1:
                raise RecordError(
                    f"{where}: token ids, mask, log-probabilities and versions differ in length: {sorted(lengths)}"
                )
            position = 0
            for span in segment.spans:
                if span.start != position or span.end <= span.start:
                    raise RecordError(f"{where}: spans do not tile the tokens at {position}: {span}")
                if any(flag != (span.kind is SpanKind.SAMPLED) for flag in segment.loss_mask[span.start : span.end]):
                    raise RecordError(f"{where}: the loss mask contradicts {span}")
                if span.kind is not SpanKind.SAMPLED and not all(
                    math.isnan(value) for value in segment.sampled_logprobs[span.start : span.end]
                ):
                    raise RecordError(f"{where}: context tokens carry log-probabilities at {span}")
                if span.kind is not SpanKind.SAMPLED and set(segment.policy_versions[span.start : span.end]) != {-1}:
                    raise RecordError(f"{where}: context tokens carry a policy version at {span}")
                if span.kind is not SpanKind.SAMPLED and span.temperature != 1.0:
                    raise RecordError(f"{where}: context tokens carry a temperature at {span}")
                if not 0 < span.temperature < math.inf:
                    raise RecordError(f"{where}: {span} has no finite temperature above 0")
                position = span.end
            if position != len(segment.token_ids):
                raise RecordError(f"{where}: spans end at {position}, tokens at {len(segment.token_ids)}")
            if not segment.spans or segment.spans[0].kind is not SpanKind.PROMPT:
                raise RecordError(f"{where}: does not begin with a prompt")


@dataclass(kw_only=True, slots=True)
class RolloutData:
    """Trajectories of one iteration and their duration."""

    trajectories: list[Trajectory] = field(default_factory=list)
    seconds: float = 0.0
    policy_version: int = 0

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

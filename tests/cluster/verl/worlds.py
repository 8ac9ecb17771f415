"""What the tests of this room share: a tool, an environment, and managers that answer as verl's servers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from midthought.cluster.verl.job import EpisodeSetup, QuestionEnvironment
from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling
from midthought.rollout.episode import RolloutParts
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, ParsedAction, Reward, Task, ToolEvent, Trajectory


class Look(Tool):
    """Answers with the word that it was asked for, and a foreign tag."""

    definition = ToolDefinition("look", "Look a word up.", [ToolParameter("word", "string", "What.", required=False)])

    def execute(self, word: str = "nothing") -> str:
        return f"{word} is found.</think>"


class Judge:
    """Pays for calls and for policy tokens; replies as often as it is told to."""

    def __init__(self, replies: Sequence[str] = ()) -> None:
        self._replies = list(replies)

    async def reply(self, trajectory: Trajectory) -> str | None:
        return self._replies.pop(0) if self._replies else None

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={"calls": float(trajectory.num_calls), "tokens": trajectory.num_sampled / 64})


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """For `agent_loop.yaml`: the judge above, and perhaps the call format below."""
    call_format = EveryFew() if options.get("every_few") else None
    return EpisodeSetup(environment=lambda task: Judge(options.get("replies", ())), call_format=call_format)


class EveryFew:
    """A call format for models that know none: a call "ends" after every fifth piece of text, three times."""

    name = "every_few"
    think_tags = ("<think>", "</think>")
    stops_at_call = True

    def __init__(self) -> None:
        self._num_pieces, self._num_calls = 5, 3

    def scanner(self, *, in_thought: bool) -> EveryFew:
        return EveryFew()

    def feed(self, piece: str) -> bool:
        self._num_pieces -= 1
        return self._num_pieces == 0 and self._num_calls > 0

    def take(self) -> list[ParsedAction]:
        if self._num_pieces > 0 or self._num_calls == 0:
            return []
        self._num_pieces, self._num_calls = 6, self._num_calls - 1
        return [ParsedAction(tool_name="look", parameters={"word": "tide"}, raw_text="", success=True)]

    def resume(self) -> None:
        pass

    def parse_all(self, text: str, *, in_thought: bool = True) -> list[ParsedAction]:
        return []

    def render_call(self, tool_name: str, parameters: Mapping[str, Any]) -> str:
        return ""

    def render_results(self, events: Sequence[ToolEvent]) -> str:
        return "".join(f"[{event.call.result}]" for event in events)

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        return ""


class _StopAt:
    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = frozenset(token_ids)

    def feed(self, token_id: int) -> bool:
        return token_id in self._token_ids


class Manager:
    """verl's server manager over one of our engines: whole answers, cut at `max_tokens` and `stop_token_ids` alone.

    `make_output` makes verl's TokenOutput; the tests that have no verl take a look-alike.
    """

    def __init__(
        self,
        engine: Any,
        make_output: Callable[..., Any] = SimpleNamespace,
        *,
        seed: int = 0,
        ignores_stops: bool = False,
    ) -> None:
        self.engine = engine
        self.make_output = make_output
        self.seed = seed
        self.ignores_stops = ignores_stops
        self.requests: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> Any:
        self.requests.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params, **more})
        sampling = Sampling(
            max_tokens=sampling_params.get("max_tokens", 8),
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            seed=self.seed,
        )
        stops = [] if self.ignores_stops else sampling_params.get("stop_token_ids", [])
        episode = hash(request_id)
        done: Completion = await self.engine.sample(episode, prompt_ids, sampling, stopper=_StopAt(stops))
        return self.make_output(
            token_ids=list(done.token_ids),
            log_probs=list(done.sampled_logprobs) if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=1,
            extra_fields={"global_steps": 7, "min_global_steps": 7, "max_global_steps": 6 + len(self.requests)},
        )


def parts(
    engine: Any, renderer: Renderer, call_format: Any = None, system: str = "", replies: Any = None, **limits: Any
) -> RolloutParts:
    """The parts of episodes without verl. Without replies nothing is judged."""
    return RolloutParts(
        engine=engine,
        renderer=renderer,
        call_format=call_format or InThoughtFormat(),
        executor=ToolExecutor(ToolRegistry([Look()])),
        messages=lambda task: task.messages(system),
        environment=lambda task: QuestionEnvironment() if replies is None else Judge(replies),
        inference=InferenceConfig(**limits),
    )


def task(number: int = 0) -> Task:
    return Task(task_id=f"t{number}", prompt=f"Who found tide number {number}?", answer="Ada", aliases=("A. L.",))

"""What the tests of this room share: a tool, an environment, and managers that answer as verl's servers do."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from playing import EveryFew, Host, parts_of

from midthought.cluster.verl.job import EpisodeSetup, QuestionEnvironment
from midthought.engines.engine import Sampling
from midthought.rollout.episode import RolloutParts
from midthought.tokenization import Renderer
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.types import Completion, Reward, Task, Trajectory


class Look(Tool):
    """Answers with the word that it was asked for, and a foreign tag."""

    definition = ToolDefinition("look", "Look a word up.", [ToolParameter("word", "string", "What.", required=False)])

    def execute(self, word: str = "nothing") -> str:
        return f"{word} is found.</think>"


def judge(replies: Sequence[str] = ()) -> Host:
    """Pays for calls and for policy tokens; replies as often as it is told to."""

    def score(trajectory: Trajectory) -> Reward:
        return Reward(parts={"calls": float(trajectory.num_calls), "tokens": trajectory.num_sampled / 64})

    return Host(replies, score)


def every_few() -> EveryFew:
    """Three calls in an episode."""
    return EveryFew(num_calls=3)


def supply(renderer: Renderer, tools: Sequence[Tool], options: Mapping[str, Any]) -> EpisodeSetup:
    """For `agent_loop.yaml`: the judge above, and perhaps the call format above."""
    call_format = every_few() if options.get("every_few") else None
    return EpisodeSetup(environment=lambda task: judge(options.get("replies", ())), call_format=call_format)


class _StopAt(frozenset[int]):
    feed = frozenset.__contains__


class Manager:
    """verl's server manager over one of our engines: whole answers, cut at `max_tokens` and `stop_token_ids` alone.

    `make_output` makes verl's TokenOutput; the tests that have no verl take a look-alike. OmegaConf would take a
    dataclass for a configuration.
    """

    def __init__(
        self, engine: Any, make_output: Any = SimpleNamespace, *, seed: int = 0, ignores_stops: bool = False
    ) -> None:
        self.engine, self.make_output, self.seed, self.ignores_stops = engine, make_output, seed, ignores_stops
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
    return parts_of(
        engine,
        renderer,
        call_format=call_format,
        tools=[Look()],
        messages=lambda task: task.messages(system),
        environment=lambda task: QuestionEnvironment() if replies is None else judge(replies),
        **{"max_tokens": 2048, **limits},
    )


def task(number: int = 0) -> Task:
    return Task(task_id=f"t{number}", prompt=f"Who found tide number {number}?", answer="Ada", aliases=("A. L.",))

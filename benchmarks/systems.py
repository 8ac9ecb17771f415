"""The compared systems that run in this process: our rollout and its engine, the bare loop, transformers' `generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch

from benchmarks.bare import BareLoop
from benchmarks.reciter import Reciter
from benchmarks.work import Latency, LookTool, Shape, Work, at_once
from midthought.config import InferenceConfig
from midthought.engines.engine import Engine, Sampling, Stopper
from midthought.engines.local.engine import LocalEngine
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.tools.definition import Tool
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Completion, Reward, SpanKind, Task, ToolOutcome, Trajectory


def make_engine(reciter: Reciter, shape: Shape, *, share_prefixes: bool = True) -> LocalEngine:
    """Our engine as it comes, with room for the work."""
    return LocalEngine(
        reciter.model,
        eos_token_ids=reciter.renderer.eos_token_ids,
        max_num_seqs=max(128, shape.num_episodes),
        max_seq_len=shape.length + 1,
        share_prefixes=share_prefixes,
    )


class Ours:
    """Whole episodes with tools: prompts are rendered, calls are found, run and answered, trajectories are recorded.

    The last span ends in a call, too: it is refused (no calls left, or no turns left), and that ends the episode.
    """

    def __init__(
        self,
        reciter: Reciter,
        engine: Engine,
        latency: Latency = at_once,
        wait_for: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
    ) -> None:
        self._reciter = reciter
        self._engine = engine
        self._latency = latency
        self._wait_for = wait_for
        self.trajectories: list[Trajectory] = []
        self.finished_seconds: list[float] = []
        """When each episode ended, from the beginning of the run, in the order in which they did."""

    def prepare(self, work: Work) -> None:
        self._shape = shape = work.shape
        self._parts = make_parts(self._reciter, self._engine, LookTool(work.results, self._latency), shape)
        self._starts = [
            EpisodeStart(task=task, seed=work.seed * 1000 + number, group=number // shape.num_per_prompt)
            for number, task in enumerate(work.tasks())
        ]

    def run(self) -> None:
        self.finished_seconds = []
        self.trajectories = self._wait_for(self._episodes())

    async def _episodes(self) -> list[Trajectory]:
        clock = asyncio.get_running_loop().time
        began = clock()
        return await run_episodes(
            self._parts, self._starts, on_finished=lambda _: self.finished_seconds.append(clock() - began)
        )

    def check(self) -> None:
        check_episodes(self.trajectories, self._reciter, self._shape)


def make_parts(reciter: Reciter, engine: Engine, tool: Tool, shape: Shape) -> RolloutParts:
    """What episodes of this shape are run with."""
    registry = ToolRegistry()
    registry.register(tool)
    return RolloutParts(
        engine=engine,
        renderer=reciter.renderer,
        call_format=reciter.call_format,
        executor=ToolExecutor(registry, timeout_seconds=600.0, max_concurrency=shape.num_episodes),
        messages=_one_message,
        environment=_NoEnvironment,
        inference=InferenceConfig(
            max_tokens=shape.num_response,
            max_tool_calls_per_cot=shape.num_calls,
            max_turns=shape.num_spans,
        ),
    )


def check_episodes(trajectories: Sequence[Trajectory], reciter: Reciter, shape: Shape) -> None:
    """Raise AssertionError unless every one is an episode of this shape, with the tokens of the script."""
    for trajectory in trajectories:
        assert trajectory.error is None, trajectory.error
        trajectory.check()
        lengths = [span.end - span.start for span in trajectory.spans]
        assert lengths == [shape.num_prompt, *[shape.num_span, shape.num_result] * shape.num_calls, shape.num_span]
        answered = [event for event in trajectory.tool_events if event.outcome is ToolOutcome.OK]
        assert len(answered) == shape.num_calls, trajectory.tool_events
        for span in trajectory.spans:
            if span.kind is SpanKind.SAMPLED:
                reciter.check(trajectory.token_ids[span.start : span.end])


def _one_message(task: Task) -> list[dict[str, str]]:
    return [{"role": "user", "content": task.prompt}]


class _NoEnvironment:
    """Says nothing, pays nothing."""

    def __init__(self, task: Task) -> None:
        pass

    async def reply(self, trajectory: Trajectory) -> None:
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward()


class ForgetfulEngine:
    """An engine that computes the whole context anew at every call: what is cached is given back after each.

    An `Engine`, so that the same rollout loop drives it.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self.policy_version = engine.policy_version
        self.eos_token_ids = engine.eos_token_ids
        self._engine = engine

    async def sample(
        self, episode: int, token_ids: Sequence[int], sampling: Sampling, *, stopper: Stopper | None = None
    ) -> Completion:
        completion = await self._engine.sample(episode, token_ids, sampling, stopper=stopper)
        self._engine.close(episode)
        return completion

    def open(self, episode: int) -> None:
        self._engine.open(episode)

    def close(self, episode: int) -> None:
        self._engine.close(episode)


class RePrefill(Ours):
    """The same episodes on an engine that forgets."""

    def __init__(self, reciter: Reciter, shape: Shape) -> None:
        self.engine = make_engine(reciter, shape, share_prefixes=False)
        super().__init__(reciter, ForgetfulEngine(self.engine))

    def check(self) -> None:
        super().check()
        assert self.engine.stats.num_reused_tokens == 0, "the engine reused tokens although prefix sharing is off"


class OurSampling:
    """An engine of ours alone: as many tokens as an episode has, in one piece, without tools."""

    def __init__(
        self,
        reciter: Reciter,
        engine: Engine,
        wait_for: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
    ) -> None:
        self._reciter = reciter
        self._engine = engine
        self._wait_for = wait_for

    def prepare(self, work: Work) -> None:
        self._prompts = work.prompt_ids(self._reciter)
        self._num_tokens, self._seed = work.shape.num_sampled, work.seed

    def run(self) -> None:
        self._completions: list[Completion] = self._wait_for(self._sample_all())

    async def _sample_all(self) -> list[Completion]:
        numbers = range(len(self._prompts))
        for number in numbers:
            self._engine.open(number)
        completions = await asyncio.gather(*(self._sample(number) for number in numbers))
        for number in numbers:
            self._engine.close(number)
        return completions

    async def _sample(self, number: int) -> Completion:
        sampling = Sampling(max_tokens=self._num_tokens, seed=self._seed * 1000 + number)
        return await self._engine.sample(number, self._prompts[number], sampling)

    def check(self) -> None:
        for completion in self._completions:
            assert len(completion.token_ids) == self._num_tokens
            self._reciter.check(completion.token_ids)


class BareEpisodes:
    """The limit of in-thought episodes: every token is prefilled or decoded once (P + D), results are there at once."""

    def __init__(self, reciter: Reciter, loop: BareLoop) -> None:
        self._reciter = reciter
        self._loop = loop

    def prepare(self, work: Work) -> None:
        self._num_span = work.shape.num_span
        contexts = [
            work.prompt_ids(self._reciter),
            *(work.result_ids(self._reciter, call) for call in range(work.shape.num_calls)),
        ]
        self._contexts = [torch.tensor(rows, device=self._reciter.model.device) for rows in contexts]

    def run(self) -> None:
        loop = self._loop
        loop.reset()
        self._spans = [loop.sample(loop.prefill(self._contexts[0]), self._num_span)]
        for context in self._contexts[1:]:
            logits = loop.prefill(torch.cat([self._spans[-1][:, -1:], context], dim=1))
            self._spans.append(loop.sample(logits, self._num_span))
        self._tokens = [span.tolist() for span in self._spans]

    def check(self) -> None:
        for rows in self._tokens:
            for token_ids in rows:
                assert len(token_ids) == self._num_span
                self._reciter.check(token_ids)


class BareSampling:
    """The limit without tools: one prefill, then one token after the other."""

    def __init__(self, reciter: Reciter, loop: BareLoop) -> None:
        self._reciter = reciter
        self._loop = loop

    def prepare(self, work: Work) -> None:
        self._prompts = torch.tensor(work.prompt_ids(self._reciter), device=self._reciter.model.device)
        self._num_tokens = work.shape.num_sampled

    def run(self) -> None:
        self._loop.reset()
        self._tokens = self._loop.sample(self._loop.prefill(self._prompts), self._num_tokens).tolist()

    def check(self) -> None:
        for token_ids in self._tokens:
            assert len(token_ids) == self._num_tokens
            self._reciter.check(token_ids)


class Generate:
    """transformers' `generate` on the same prompts, as many tokens, without tools and without log-probabilities."""

    def __init__(self, reciter: Reciter) -> None:
        self._reciter = reciter

    def prepare(self, work: Work) -> None:
        self._prompts = torch.tensor(work.prompt_ids(self._reciter), device=self._reciter.model.device)
        self._num_tokens = work.shape.num_sampled

    def run(self) -> None:
        tokens = self._reciter.model.generate(
            self._prompts,
            attention_mask=torch.ones_like(self._prompts),
            max_new_tokens=self._num_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=None,
        )
        self._tokens = tokens[:, self._prompts.shape[1] :].tolist()

    def check(self) -> None:
        for token_ids in self._tokens:
            assert len(token_ids) == self._num_tokens
            self._reciter.check(token_ids)

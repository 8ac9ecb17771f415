"""What an episode asks others is recorded once and returned again: tools, critics, judges, completions, environments."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from midthought.cassette.cassette import Cassette, require_new
from midthought.config import CassetteConfig, EnvironmentConfig, InferenceConfig
from midthought.engines.byte_tokenizer import byte_tokenizer
from midthought.engines.recorded import RecordedEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.env.environment import BaseEnvironment
from midthought.env.episode import EnvironmentEpisode
from midthought.errors import CassetteError, OutputPathError, SettingsError
from midthought.feedback.tool import FeedbackTool
from midthought.rollout.episode import EpisodeStart, RolloutParts, run_episodes
from midthought.rollout.trajectory_json import trajectory_to_json
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolOutput, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Reward, StopReason, Task, ToolOutcome, Trajectory

RENDERER = Renderer(byte_tokenizer())
KEY = "sk-0123456789abcdef"


class Look(Tool):
    """Returns something else each time, and takes a while that is drawn."""

    definition = ToolDefinition("look", "Looks.", [ToolParameter("query", "string", "For what.")])
    num_calls = 0

    async def execute(self, query: str) -> ToolOutput:
        self.num_calls += 1
        number = self.num_calls
        await asyncio.sleep(random.uniform(0, 0.002))
        if query == "bad":
            raise RuntimeError(f"failure {number}")
        return ToolOutput(f"{query} {number} é\ud800", {"ids": (number, 2.5), "who": {"a": None}})


class Dice(Tool):
    definition = ToolDefinition("dice", "Throws.", [])
    pure = True

    def execute(self) -> str:
        return str(random.random())


class Length:
    async def reply(self, trajectory: Trajectory) -> str | None:
        return None

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={"length": float(trajectory.num_sampled)})


def writes(episode: int, token_ids: Sequence[int]) -> str | None:
    """Two calls in one turn, one more, and an answer: each with a number that no seed determines."""
    text = RENDERER.decode(token_ids)
    if text.endswith("</think>done") or "</think>d" in text:
        return None
    if "#call" not in text.rpartition("<think>")[2]:
        query = "bad" if episode == 1 else f"q{episode}"
        return f'<think>{random.random()} #call look {{"query": "{query}"}}'
    if "dice" not in text:
        return "#call dice {}"
    return f"{random.random()}</think>done"


def parts_of(engine: Any, tools: Sequence[Tool] = (), **changes: Any) -> RolloutParts:
    fields: dict[str, Any] = {
        "engine": engine,
        "renderer": RENDERER,
        "call_format": InThoughtFormat(),
        "executor": ToolExecutor(ToolRegistry(tools), timeout_seconds=5),
        "messages": lambda task: [{"role": "user", "content": task.prompt}],
        "environment": lambda task: Length(),
        "inference": InferenceConfig(max_tokens=4000),
    }
    return RolloutParts(**{**fields, **changes})


def starts(count: int, **changes: Any) -> list[EpisodeStart]:
    tasks = [Task(task_id=f"t{n}", prompt="Who?", answer="Ada") for n in range(count)]
    return [EpisodeStart(**{"task": task, "seed": n, **changes}) for n, task in enumerate(tasks)]


def play(
    parts: RolloutParts, config: CassetteConfig, num_episodes: int = 6, name: str = "train-000000"
) -> list[Trajectory]:
    with Cassette(config).part(name) as part:
        bound = RolloutParts(**{n: getattr(parts, n) for n in parts.__slots__} | {"cassette_part": part})
        return asyncio.run(run_episodes(bound, starts(num_episodes)))


def silent(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """The whole records, without measured times."""
    rows = [trajectory_to_json(trajectory) for trajectory in trajectories]
    for row in rows:
        del row["tool_seconds"], row["engine_seconds"]
        row["tool_events"] = [{**event, "seconds": 0} for event in row["tool_events"]]
    return rows


def replaying_engine() -> RecordedEngine:
    return RecordedEngine(RENDERER.eos_token_ids, 4096)


def test_a_replay_repeats_every_token_and_result_without_engine_and_tools(tmp_path: Path) -> None:
    tools = [Look(), Dice()]
    first = play(parts_of(ScriptedEngine(writes, RENDERER), tools), CassetteConfig(record=str(tmp_path)))
    assert [t.stop_reason for t in first] == [StopReason.ANSWERED] * 6
    assert {event.outcome for event in first[1].tool_events} == {ToolOutcome.RAISED, ToolOutcome.OK}
    assert sum("shared" in event.metadata for t in first for event in t.tool_events) == 5

    num_calls = tools[0].num_calls
    again = play(parts_of(replaying_engine(), tools), CassetteConfig(replay=str(tmp_path)))
    assert silent(again) == silent(first)
    assert tools[0].num_calls == num_calls == 6
    unrecorded = asyncio.run(run_episodes(parts_of(ScriptedEngine(writes, RENDERER), tools), starts(6)))
    assert silent(unrecorded) != silent(first)


def test_recording_changes_nothing_that_the_policy_reads(tmp_path: Path) -> None:
    def written(config: CassetteConfig | None) -> list[dict[str, Any]]:
        random.seed(1)
        parts = parts_of(ScriptedEngine(writes, RENDERER), [Look(), Dice()])
        return silent(play(parts, config, 1) if config else asyncio.run(run_episodes(parts, starts(1))))

    assert written(CassetteConfig(record=str(tmp_path))) == written(None)


def test_without_completions_a_deterministic_engine_samples_again(tmp_path: Path) -> None:
    script = ['<think>#call look {"query": "a"}So.</think>Ada'] * 2
    tools = [Look()]
    first = play(
        parts_of(ScriptedEngine(script, RENDERER), tools), CassetteConfig(record=str(tmp_path), completions=False), 2
    )
    replay = CassetteConfig(replay=str(tmp_path), completions=False)
    assert silent(play(parts_of(ScriptedEngine(script, RENDERER), tools), replay, 2)) == silent(first)
    assert tools[0].num_calls == 2
    with pytest.raises(CassetteError, match="completion 'sample'"):
        play(parts_of(replaying_engine(), tools), CassetteConfig(replay=str(tmp_path)), 2)


def test_the_first_call_that_was_not_recorded_stops_the_run_and_is_named_with_the_nearest(tmp_path: Path) -> None:
    def scripted(query: str) -> ScriptedEngine:
        return ScriptedEngine([f'<think>#call look {{"query": "{query}"}}So.</think>Ada', "Ada"], RENDERER)

    play(parts_of(scripted("tide"), [Look()]), CassetteConfig(record=str(tmp_path), completions=False), 2)
    replay = CassetteConfig(replay=str(tmp_path), completions=False)
    with pytest.raises(CassetteError) as found:
        play(parts_of(scripted("tides"), [Look()]), replay, 2)
    words = str(found.value)
    assert "not recorded: tool 'look' with {\"query\": \"tides\"} in episode 0 (task 't0')" in words
    assert 'nearest recorded call is tool \'look\' with {"query": "tide"} in episode 0' in words

    with pytest.raises(CassetteError, match="no part 'train-000001': it holds train-000000"):
        play(parts_of(scripted("tide"), [Look()]), replay, 2, "train-000001")
    with pytest.raises(CassetteError, match="is no cassette"):
        Cassette(CassetteConfig(replay=str(tmp_path / "other")))


def test_an_error_of_the_cassette_cannot_be_hidden_by_who_called(tmp_path: Path) -> None:
    class Asks(Length):
        async def score(self, trajectory: Trajectory) -> Reward:
            tool = FeedbackTool(Critical()).for_task(trajectory.task)
            try:
                text = (await tool.execute(current_answer="Bob")).text
            except Exception as error:
                text = str(error)
            return Reward(feedback=text)

    class Critical:
        async def feedback(self, task: Task, answer: str, reasoning: str) -> str:
            return f"{answer}? {random.random()}"

    def asking(answer: Any) -> RolloutParts:
        return parts_of(ScriptedEngine(["Ada"] * 3, RENDERER), environment=lambda task: answer)

    first = play(asking(Asks()), CassetteConfig(record=str(tmp_path)), 3)
    assert len({t.reward.feedback for t in first}) == 3
    replay = CassetteConfig(replay=str(tmp_path))
    assert silent(play(asking(Asks()), replay, 3)) == silent(first)

    class AsksMore(Asks):
        async def score(self, trajectory: Trajectory) -> Reward:
            await super().score(trajectory)
            return await super().score(trajectory)

    with pytest.raises(CassetteError, match=r"feedback 'Critical' .*call 2 of this kind"):
        play(asking(AsksMore()), replay, 3)


def test_latency_is_that_of_the_recorded_call(tmp_path: Path) -> None:
    script = ['<think>#call look {"query": "a"}So.</think>Ada']
    play(parts_of(ScriptedEngine(script, RENDERER), [Look()]), CassetteConfig(record=str(tmp_path)), 1)
    file = tmp_path / "train-000000.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    slow = [{**row, "seconds": 0.3} if row.get("kind") == "tool" else row for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in slow), encoding="utf-8")
    engine = replaying_engine()
    at_once = play(parts_of(engine, [Look()]), CassetteConfig(replay=str(tmp_path)), 1)[0].tool_seconds
    late = play(parts_of(engine, [Look()]), CassetteConfig(replay=str(tmp_path), latency=True), 1)[0].tool_seconds
    assert at_once < 0.2 < late


class Rooms(BaseEnvironment):
    """An environment whose replies and rewards nobody can repeat."""

    def reset(self, seed: int | None = None) -> str:
        return "start"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.num_steps = getattr(self, "num_steps", 0) + 1
        return f"room {random.random()}", random.random(), self.num_steps == 2, {"success": self.num_steps == 2}


def test_replies_and_rewards_of_an_environment_are_replayed(tmp_path: Path) -> None:
    def playing(engine: Any) -> RolloutParts:
        def episode(task: Task) -> EnvironmentEpisode:
            rooms = Rooms(EnvironmentConfig())
            rooms.reset()
            return EnvironmentEpisode(rooms)

        return parts_of(engine, environment=episode)

    texts = [lambda episode, ids: None if RENDERER.decode(ids).endswith("north") else "north"]
    first = play(playing(ScriptedEngine(texts[0], RENDERER)), CassetteConfig(record=str(tmp_path)), 2)
    assert [len(t.turns) for t in first] == [2, 2] and first[0].turns[-1].info["success"] is True
    again = play(playing(replaying_engine()), CassetteConfig(replay=str(tmp_path)), 2)
    assert silent(again) == silent(first)


def test_the_limit_of_an_environment_ends_a_replayed_episode_for_the_same_reason(tmp_path: Path) -> None:
    def playing(engine: Any) -> RolloutParts:
        def episode(task: Task) -> EnvironmentEpisode:
            rooms = Rooms(EnvironmentConfig(max_steps=1))
            rooms.reset()
            return EnvironmentEpisode(rooms)

        return parts_of(engine, environment=episode)

    first = play(playing(ScriptedEngine(["north"] * 2, RENDERER)), CassetteConfig(record=str(tmp_path)), 2)
    assert [t.stop_reason for t in first] == [StopReason.MAX_STEPS] * 2
    assert silent(play(playing(replaying_engine()), CassetteConfig(replay=str(tmp_path)), 2)) == silent(first)


def test_a_key_never_appears_in_a_cassette(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", KEY)

    class Echo(Look):
        async def execute(self, query: str) -> ToolOutput:
            if query == "bad":
                raise RuntimeError(f"refused {KEY}")
            return ToolOutput(f"with {KEY}", {"header": f"Bearer {KEY}"})

    def script(query: str) -> str:
        return f'<think>#call look {{"query": "{query}"}}So.</think>Ada'

    engine = ScriptedEngine([script(KEY), script("bad")], RENDERER)
    first = play(parts_of(engine, [Echo()]), CassetteConfig(record=str(tmp_path), completions=False), 2)
    texts = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    assert any("Bearer …" in text for text in texts)
    assert not any(KEY in text for text in texts)
    assert first[0].tool_events[0].call.result == "with …"  # the policy reads what is recorded
    engine = ScriptedEngine([script(KEY), script("bad")], RENDERER)
    assert silent(
        play(parts_of(engine, [Echo()]), CassetteConfig(replay=str(tmp_path), completions=False), 2)
    ) == silent(first)


def test_a_part_that_is_recorded_again_holds_each_call_once(tmp_path: Path) -> None:
    script = ['<think>#call look {"query": "a"}So.</think>Ada'] * 3

    class Killed(Exception):
        pass

    def record(fails: bool) -> None:
        with Cassette(CassetteConfig(record=str(tmp_path))).part("train-000000") as part:
            parts = parts_of(ScriptedEngine(script, RENDERER), [Look()], cassette_part=part)
            asyncio.run(run_episodes(parts, starts(3)))
            if fails:
                raise Killed

    with pytest.raises(Killed):
        record(fails=True)
    replay = CassetteConfig(replay=str(tmp_path))
    with pytest.raises(CassetteError, match="incomplete"):
        play(parts_of(replaying_engine(), [Look()]), replay, 3)
    with pytest.raises(OutputPathError, match="holds a recorded run"):
        require_new(CassetteConfig(record=str(tmp_path)), resume=False)
    require_new(CassetteConfig(record=str(tmp_path)), resume=True)
    record(fails=False)
    rows = [json.loads(line) for line in (tmp_path / "train-000000.jsonl").read_text("utf-8").splitlines()]
    calls = [(row["episode"], row["kind"]) for row in rows if "kind" in row]
    assert sorted(calls) == sorted([(n, kind) for n in range(3) for kind in ("completion", "tool", "completion")])
    assert rows[-1] == {"num_calls": 9}
    assert len(play(parts_of(replaying_engine(), [Look()]), replay, 3)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"outcome": "ok"', '"outcome": "fine"'),
        lambda text: text.replace('"result"', '"resolt"'),
        lambda text: text.replace('"task"', '"tusk"'),
        lambda text: "[]\n" + text,
        lambda text: "[" * 100_000 + "\n" + text,
        lambda text: text[: len(text) // 2],
    ],
)
def test_a_damaged_cassette_is_an_error_that_names_its_file(tmp_path: Path, damage: Any) -> None:
    script = ['<think>#call look {"query": "a"}So.</think>Ada']
    play(parts_of(ScriptedEngine(script, RENDERER), [Look()]), CassetteConfig(record=str(tmp_path)), 1)
    file = tmp_path / "train-000000.jsonl"
    file.write_text(damage(file.read_text("utf-8")), encoding="utf-8")
    with pytest.raises(CassetteError, match="train-000000"):
        play(parts_of(replaying_engine(), [Look()]), CassetteConfig(replay=str(tmp_path)), 1)


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(SettingsError, match="records or replays"):
        CassetteConfig(record="a", replay="b")
    with pytest.raises(SettingsError, match="inject faults while recording"):
        CassetteConfig(replay="b", faults=[{"rate": 0.1}])
    with pytest.raises(SettingsError, match="such a call can have error, timeout, slow"):
        CassetteConfig(faults=[{"fault": "garbled", "kind": "completion"}])

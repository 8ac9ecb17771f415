"""Environments of `verifiers` up to 0.3: small classes with the protocols of all its versions, and the package itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from midthought.config import EnvironmentConfig
from midthought.env.environment import BaseEnvironment
from midthought.env.environment_tasks import EnvironmentTasks
from midthought.env.episode import EnvironmentEpisode, call_blocking
from midthought.env.verifiers import from_verifiers
from midthought.errors import SettingsError


def begin(world: BaseEnvironment, **options: Any) -> str:
    return call_blocking(lambda: world.reset(**options), 30.0, "reset")


def do(world: BaseEnvironment, action: str) -> Any:
    return call_blocking(lambda: world.step(action), 30.0, "step")


ROWS = [
    {
        "prompt": [{"role": "system", "content": "Guess."}, {"role": "user", "content": f"1 to {top}"}],
        "answer": str(top),
    }
    for top in (3, 5, 9)
]


def hint(guess: str, answer: str) -> str:
    return "right" if guess == answer else "no digit" if not guess.isdigit() else "more" if guess < answer else "less"


class Oldest:
    """Up to 0.1.5: replies come with the state, `is_completed` reads the messages, scores are returned."""

    def __init__(self) -> None:
        self.rubric = self
        self.setups = 0

    def get_dataset(self):
        return ROWS

    async def setup_state(self, state, **options):
        self.setups += 1
        return {**state, "guesses": []}

    async def is_completed(self, messages, state, **options):
        return bool(state["guesses"]) and state["guesses"][-1] == state["answer"]

    async def env_response(self, messages, state, **options):
        state["guesses"].append(messages[-1]["content"])
        return [{"role": "user", "content": hint(messages[-1]["content"], state["answer"])}], state

    async def score_rollout(self, prompt, completion, answer, state, task="default", info=None, **options):
        reward = 1 / len(state["guesses"]) if completion[-2]["content"] == answer else 0.0
        return SimpleNamespace(reward=reward, metrics={"guesses": len(state["guesses"])})


class Newer(Oldest):
    """From 0.1.6: replies come alone, `is_completed` reads the state, scores are written into it."""

    async def setup_state(self, state):
        state["guesses"] = []

    async def is_completed(self, state, **options):
        return state.get("final_env_response") is not None or len(state["trajectory"]) >= 8

    async def env_response(self, messages, state, **options):
        return answered(messages[-1].content, state)

    async def score_rollout(self, state):
        scored = await super().score_rollout(state["prompt"], state["completion"], state["answer"], state)
        state["reward"], state["metrics"] = scored.reward, scored.metrics


class Between(Newer):
    """0.1.6 to 0.1.9: as above, scored under a semaphore."""

    async def score_rollout(self, state, score_sem):
        async with score_sem:
            await super().score_rollout(state)


class Plain(Newer):
    """Its authors wrote plain functions where those are allowed."""

    def setup_state(self, state):
        state["guesses"] = []

    def env_response(self, messages, state):
        return answered(messages[-1]["content"], state)


def answered(guess: str, state: Any) -> list[dict[str, str]]:
    state["guesses"].append(guess)
    reply = [{"role": "user", "content": hint(guess, state["answer"])}]
    if guess == state["answer"]:
        state["final_env_response"] = reply
    return reply


KINDS = [Oldest, Between, Newer, Plain]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_is_played_to_its_end_and_the_rubric_pays_the_last_answer(kind):
    world = from_verifiers(kind())
    prompt = begin(world, seed=0)
    top = prompt[-1]
    assert prompt == f"Guess.\n\n1 to {top}" and prompt == begin(world, seed=0)
    assert do(world, "1") == ("more", 0.0, False, {"metrics": {}})
    assert do(world, "what?") == ("no digit", 0.0, False, {"metrics": {}})
    assert do(world, top) == ("right", pytest.approx(1 / 3), True, {"metrics": {"guesses": 3}})


@pytest.mark.parametrize("kind", KINDS)
def test_the_limit_on_steps_is_scored_as_an_end(kind):
    world = from_verifiers(kind(), config=EnvironmentConfig(max_steps=2))
    begin(world, seed=0)
    do(world, "1")
    assert do(world, "1") == ("more", 0.0, True, {"metrics": {"guesses": 2}, "truncated": True})


def test_an_end_before_the_environments_reply_has_no_words():
    world = from_verifiers(Newer(), rows=[{"prompt": "1 to 3", "answer": "3"}])
    assert begin(world) == "1 to 3"
    for _ in range(7):
        assert do(world, "1")[0] == "more"
    assert do(world, "1")[:3] == ("", 0.0, True)


def test_every_row_is_drawn_and_an_empty_set_is_refused():
    assert {begin(from_verifiers(Oldest()), seed=seed)[-1] for seed in range(30)} == {"3", "5", "9"}
    with pytest.raises(SettingsError, match="Oldest has no rows to play; give rows="):
        from_verifiers(Oldest(), rows=[])


def test_contents_in_parts_are_read_and_info_that_is_json_is_opened():
    class Asking(Newer):
        async def env_response(self, messages, state):
            parts = [{"type": "text", "text": state["info"]["words"]}, {"type": "image_url", "image_url": "…"}]
            return {"role": "user", "content": parts}

    world = from_verifiers(Asking(), rows=[{"prompt": "?", "info": '{"words": "a picture"}'}])
    begin(world)
    assert do(world, "go")[0] == "a picture"


def test_episodes_share_the_environment_and_nothing_of_their_state():
    class Watched(Newer):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()
            self.seen = []

        async def env_response(self, messages, state):
            self.seen.append((self, state))
            return await super().env_response(messages, state)

    env = Watched()
    tasks = EnvironmentTasks(from_verifiers(env))
    (task,) = tasks.make(1, seed=0)
    one, other = tasks.start(task), tasks.start(task)
    do(one, "1")
    do(one, "1")
    do(other, "2")
    players, states = zip(*env.seen, strict=True)
    assert players == (env, env, env)
    assert states[0] is states[1] is not states[2]
    assert (states[1]["guesses"], states[2]["guesses"]) == (["1", "1"], ["2"])
    assert isinstance(tasks.episode(task), EnvironmentEpisode)


def test_a_real_environment_of_verifiers_is_played():
    verifiers = pytest.importorskip("verifiers")
    if not hasattr(verifiers, "MultiTurnEnv"):
        pytest.skip("this version of verifiers has no MultiTurnEnv")
    from datasets import Dataset

    class Guess(verifiers.MultiTurnEnv):
        async def setup_state(self, state):
            state["guesses"] = []
            return state

        async def env_response(self, messages, state, **options):
            return answered(messages[-1]["content"], state)

    def is_right(completion, answer, **options):
        return float(any(message["content"] == answer for message in completion if message["role"] == "assistant"))

    rows = Dataset.from_list([{"question": "1 to 5", "answer": "5"}])
    env = Guess(dataset=rows, rubric=verifiers.Rubric(funcs=[is_right]), system_prompt="Guess.", max_turns=4)
    world = from_verifiers(env)
    assert begin(world) == "Guess.\n\n1 to 5"
    assert do(world, "3")[:3] == ("more", 0.0, False)
    observation, reward, done, info = do(world, "5")
    assert (observation, reward, done) == ("right", 1.0, True) and info["metrics"]["is_right"] == 1.0

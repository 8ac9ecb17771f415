"""Conversations by hand and episodes with an environment: exact to the token."""

import asyncio
import gc
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from playing import Add
from precision import logit_tolerance
from small_qwen import small_model, token_logprobs
from transformers import Qwen3Config

from midthought.config import EnvironmentConfig
from midthought.engines.inference_engines import LocalInferenceEngine, ScriptedInferenceEngine
from midthought.engines.scripted import byte_tokenizer
from midthought.env.environment import BaseEnvironment, EpisodeError
from midthought.errors import EngineError, SettingsError
from midthought.rollout.multi_turn import MultiTurnInferenceEngine
from midthought.tokenization import Renderer
from midthought.tools.builtin.own_objects import EnvironmentStepTool
from midthought.tools.call_formats import ActionParser
from midthought.tools.definition import Tool, ToolDefinition
from midthought.tools.multi_turn import MultiTurnManager
from midthought.tools.parsers import HermesParser, InThoughtParser
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Reward, StopReason, Trajectory

NO_SYSTEM_ROLE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Guess(BaseEnvironment):
    """Pays 1 for the 7 and 0.25 for any other digit."""

    def __init__(self, config: EnvironmentConfig | None = None) -> None:
        super().__init__(config)
        self.num_resets = 0

    def get_prompt_prefix(self) -> str:
        return "Find the digit."

    def reset(self) -> str:
        self.num_resets += 1
        return f"Round {self.num_resets}."

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        if action == "7":
            return "Right.", 1.0, True, {}
        return f"Not {action}.", 0.25, False, {}


class AsyncGuess(Guess):
    async def step(self, action: str) -> tuple[str, float, bool, dict]:
        return super().step(action)


class Broken(Guess):
    def step(self, action: str) -> tuple[str, float, bool, dict]:
        raise KeyError(action)


def engine_of(*conversations: Sequence[str], template: str | None = None) -> ScriptedInferenceEngine:
    """Each conversation's answers, in order."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    return ScriptedInferenceEngine(["<|im_end|>".join(answers) for answers in conversations], tokenizer)


def manager(parser: ActionParser | None = None, *tools: Tool) -> MultiTurnManager:
    return MultiTurnManager(ToolRegistry(tools or [Add()]), parser or HermesParser())


def with_tools(engine: Any, parser: Any = None, *tools: Tool, **options: Any) -> MultiTurnInferenceEngine:
    return MultiTurnInferenceEngine(engine, tool_manager=manager(parser, *tools), enable_tools=True, **options)


def call(a: int, b: int) -> str:
    return HermesParser().render_call("add", {"a": a, "b": b})


# -- by hand -------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_turn_by_turn_and_its_text_is_what_the_engine_sees():
    talk = MultiTurnInferenceEngine(engine_of(["Hello.", "Fine."]))
    talk.start_conversation("Hi <|im_end|>!")
    opening = "<|im_start|>user\nHi <|im_end|>!<|im_end|>\n<|im_start|>assistant\n"
    assert talk.format_conversation() == opening and talk.awaits_policy
    assert talk.step() == {"response": "Hello.", "tool_call": talk.trajectory.turns[0].tool_call, "tool_result": None}
    assert not talk.awaits_policy and not talk.trajectory.turns[0].tool_call
    assert talk.step("How are you?")["response"] == "Fine."
    reply = "\n<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"
    assert talk.format_conversation() == f"{opening}Hello.<|im_end|>{reply}Fine.<|im_end|>"
    assert [turn.observation for turn in talk.trajectory.turns] == ["How are you?", None]
    talk.trajectory.check()


def test_all_calls_of_a_turn_are_run_and_what_went_wrong_is_a_result():
    talk = with_tools(engine_of([f"{call(1, 2)}{call(30, 40)}", HermesParser().render_call("subtract", {}), "Oh."]))
    talk.start_conversation("Add.")
    outcome = talk.step()
    assert outcome["tool_call"].result == "3" and outcome["tool_result"] == "3\n70"
    assert "tool\n3<|im_end|>" in talk.format_conversation() and "tool\n70<|im_end|>" in talk.format_conversation()
    outcome = talk.step()
    assert outcome["tool_call"].success is False and "unknown tool 'subtract'" in outcome["tool_result"]
    assert talk.step()["response"] == "Oh."


def test_the_system_prompt_stands_first_and_describes_the_tools_where_they_are_enabled():
    def opening(template: str | None = None, **options: Any) -> str:
        talk = MultiTurnInferenceEngine(engine_of([call(1, 2)], template=template), tool_manager=manager(), **options)
        talk.start_conversation("Hi")
        text = talk.format_conversation()
        assert (talk.step()["tool_result"] == "3") == ("enable_tools" in options)
        return text

    assert opening().startswith("<|im_start|>user\nHi")
    assert opening(system_prompt="Be brief.").startswith("<|im_start|>system\nBe brief.<|im_end|>")
    inside = "<|im_start|>user\nBe brief.\n\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert opening(NO_SYSTEM_ROLE, system_prompt="Be brief.") == inside
    tools = manager().get_system_prompt()
    assert opening(enable_tools=True).startswith(f"<|im_start|>system\n{tools}<|im_end|>")
    both = opening(system_prompt="Be brief.", enable_tools=True)
    assert both.startswith(f"<|im_start|>system\nBe brief.\n\n{tools}<|im_end|>\n<|im_start|>user\nHi<|im_end|>")


def test_max_tokens_is_of_one_answer_and_an_answer_that_is_cut_ends_the_conversation():
    talk = MultiTurnInferenceEngine(engine_of(["a" * 9, "b" * 9, "c" * 400]))
    talk.start_conversation("Go")
    assert talk.step(max_tokens=10)["response"] == "a" * 9
    assert talk.step("on", max_tokens=10)["response"] == "b" * 9
    assert talk.step("on", max_tokens=300)["response"] == "c" * 300
    assert talk.trajectory.stop_reason is StopReason.LENGTH and not talk.awaits_policy
    with pytest.raises(EngineError, match=r"ended after 3 turns \(length\)"):
        talk.step("on")
    text = '<think>#call add {"a": 1, "b": 1}</think>' + "x" * 20
    talk = with_tools(engine_of([text]), InThoughtParser())
    talk.start_conversation("Go")  # results in an answer do not count
    assert talk.step(max_tokens=len(text) - len("<think></think>") + 2 + 1)["response"].endswith("x" * 20)


def test_a_conversation_ends_after_max_turns():
    talk = MultiTurnInferenceEngine(engine_of(["one", "two", "three"]), max_turns=2)
    talk.start_conversation("Count")
    talk.step()
    assert talk.trajectory.stop_reason is None
    talk.step("on")
    assert talk.trajectory.stop_reason is StopReason.ANSWERED and talk.trajectory.dones == [False, True]
    with pytest.raises(EngineError, match=r"ended after 2 turns \(answered\)"):
        talk.step("on")
    assert talk.format_conversation().endswith("two<|im_end|>")
    talk.start_conversation("second")
    assert talk.trajectory.turns == [] and "Count" not in talk.format_conversation()
    called = with_tools(engine_of([call(1, 2)]), max_turns=1)
    called.start_conversation("Add")
    assert called.step()["tool_result"] == "3", "a call in the last turn by hand is run for whoever asked"
    assert called.trajectory.stop_reason is StopReason.MAX_TURNS and not called.awaits_policy


def test_a_step_out_of_turn_says_what_to_do_instead():
    talk = with_tools(engine_of([call(1, 2), "Three."]))
    for act in (talk.step, talk.format_conversation):
        with pytest.raises(EngineError, match="call start_conversation"):
            act()
    talk.start_conversation("Add")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"call step\(\) without a message"):
            talk.step("more")
        talk.step()
    with pytest.raises(EngineError, match="give step a user_message"):
        talk.step()
    assert talk.trajectory.stop_reason is None and len(talk.trajectory.turns) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError("no words"), StopReason.FAILED), (KeyboardInterrupt(), StopReason.CANCELLED)],
)
def test_an_engine_that_fails_ends_the_conversation_and_its_error_is_raised(error, reason):
    def script(episode: int, token_ids: Sequence[int]) -> str:
        raise error

    talk = MultiTurnInferenceEngine(ScriptedInferenceEngine(script))
    talk.start_conversation("Hi")
    with pytest.raises(type(error)):
        talk.step()
    assert talk.trajectory.stop_reason is reason
    with pytest.raises(EngineError, match=rf"\({reason}\)"):
        talk.step()


def test_a_tool_may_use_the_same_engine():
    class Ask(Tool):
        definition = ToolDefinition("ask", "Asks the model itself.")

        def execute(self) -> str:
            return engine.generate("And you?").sequences[0]

    engine = engine_of([HermesParser().render_call("ask", {}), "Done."], ["I think so."])
    talk = with_tools(engine, None, Ask())
    talk.start_conversation("Hi")
    assert "I think so." in talk.step()["tool_result"]
    assert talk.step()["response"] == "Done."


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda engine: MultiTurnInferenceEngine(engine, enable_tools=True), "enable_tools=True needs"),
        (lambda engine: MultiTurnInferenceEngine(engine, max_turns=0), "max_turns=0"),
        (lambda engine: MultiTurnInferenceEngine(engine).run_episode(Guess, "x"), "give an instance"),
        (lambda engine: MultiTurnInferenceEngine(engine).run_episode(None, 5), "a text; got 5"),
        (lambda engine: MultiTurnInferenceEngine(engine).run_episode(None, "x", beams=5), "unknown key 'beams'"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(wrong, message):
    with pytest.raises(SettingsError, match=message):
        wrong(engine_of(["x"]))


def test_everything_works_inside_a_running_event_loop():
    async def inside() -> float:
        talk = MultiTurnInferenceEngine(engine_of(["Hello."], ["7"]))
        talk.start_conversation("Hi")
        talk.step()
        return talk.run_episode(AsyncGuess(), "")["total_reward"]

    assert asyncio.run(inside()) == 1.0


# -- episodes ------------------------------------------------------------------------------------------------------


def test_an_episode_is_played_to_its_end_and_its_record_holds_the_rewards():
    talk = MultiTurnInferenceEngine(engine_of(["3", "<think>no 5 then</think> 4 ", "7", "never"]))
    summary = talk.run_episode(Guess(), "Good luck!")
    assert summary["num_turns"] == 3 and summary["total_reward"] == 1.5
    assert [turn.observation for turn in summary["turns"]] == ["Not 3.", "Not 4.", "Right."]
    assert summary["tools"] == {"num_tool_calls": 0, "successful_tool_calls": 0, "tools_used": []}
    assert talk.trajectory.reward == Reward(turns=(0.25, 0.25, 1.0))
    assert talk.trajectory.dones == [False, False, True] and talk.trajectory.stop_reason is StopReason.ANSWERED
    assert talk.format_conversation().startswith("<|im_start|>user\nFind the digit.\nGood luck!\nRound 1.<|im_end|>")
    with pytest.raises(EngineError, match="ended after 3 turns"):
        talk.step("again")


def test_an_environment_that_comes_fresh_from_reset_is_played_from_there_and_any_other_is_reset():
    env = Guess()
    talk = MultiTurnInferenceEngine(engine_of(["7"], ["7"], ["7"]))
    talk.run_episode(env, env.reset())
    assert env.num_resets == 1 and talk.trajectory.task.prompt == "Find the digit.\nRound 1."
    talk.run_episode(env, "Find the digit.\nRound 2.\nThink first.")
    assert env.num_resets == 2 and talk.trajectory.task.prompt == "Find the digit.\nRound 2.\nThink first."
    env.reset()
    env.step("1")
    talk.run_episode(env, "")
    assert env.num_resets == 4 and env.get_step_count() == 1


def test_an_observation_whose_characters_stand_in_the_prompt_by_chance_is_told():
    class Lake(Guess):
        def reset(self) -> str:
            return "0"

    talk = MultiTurnInferenceEngine(engine_of(["7"]))
    talk.run_episode(Lake(), "Go from field 0 to field 15, in 10 steps.")
    assert talk.trajectory.task.prompt == "Find the digit.\nGo from field 0 to field 15, in 10 steps.\n0"


def test_without_an_environment_of_the_episode_tools_have_that_of_the_manager():
    env, step = Guess(), HermesParser().render_call("environment_step", {"action": "3"})
    env.reset()
    tools = MultiTurnManager(ToolRegistry([EnvironmentStepTool()]), HermesParser(), env)
    talk = MultiTurnInferenceEngine(engine_of([step], [step, "Done."]), tool_manager=tools, enable_tools=True)
    talk.start_conversation("Guess.")
    assert talk.step()["tool_result"] == "Not 3.\nreward: 0.25; the episode continues"
    assert talk.run_episode(None, "Guess.")["tools"]["successful_tool_calls"] == 1
    assert env.get_step_count() == 2


def test_a_tool_steps_an_async_environment_on_the_loop_of_its_reset():
    class Looped(Guess):
        async def reset(self) -> str:
            self.loops = [asyncio.get_running_loop()]
            return super().reset()

        async def step(self, action: str) -> tuple[str, float, bool, dict]:
            self.loops.append(asyncio.get_running_loop())
            return super().step(action)

    env, step = Looped(), HermesParser().render_call("environment_step", {"action": "3"})
    talk = with_tools(engine_of([step, "7"]), None, EnvironmentStepTool())
    assert talk.run_episode(env, "")["total_reward"] == 1.25
    assert len(env.loops) == 3 and len(set(env.loops)) == 1


def test_a_call_beyond_the_limit_is_no_use_of_its_tool():
    talk = with_tools(
        engine_of([HermesParser().render_call("add", {"a": 1, "b": 2}), "Done."]), max_tool_calls_per_cot=0
    )
    tools = {"num_tool_calls": 1, "successful_tool_calls": 0, "tools_used": []}
    assert talk.run_episode(None, "1 + 2?")["tools"] == tools


def test_an_episode_without_an_environment_is_the_answer_with_its_calls():
    talk = with_tools(engine_of([call(2, 3), call(5, 5), "Ten."]))
    summary = talk.run_episode(None, "2 + 3 + 5?")
    assert summary["num_turns"] == 3 and summary["total_reward"] == 0.0
    assert summary["turns"][-1].model_output == "Ten."
    assert summary["tools"] == {"num_tool_calls": 2, "successful_tool_calls": 2, "tools_used": ["add"]}
    assert talk.tool_manager is not None and talk.tool_manager.get_episode_summary()["num_tool_calls"] == 2


def test_an_episode_ends_after_max_turns_or_at_the_environments_own_limit():
    talk = MultiTurnInferenceEngine(engine_of(*[["1"] * 9] * 3), max_turns=3)
    assert talk.run_episode(Guess(), "")["num_turns"] == 3
    assert talk.trajectory.stop_reason is StopReason.MAX_TURNS
    assert talk.run_episode(Guess(), "", max_turns=2)["total_reward"] == 0.5
    assert talk.run_episode(Guess(EnvironmentConfig(max_steps=2)), "")["num_turns"] == 2
    assert talk.trajectory.stop_reason is StopReason.MAX_STEPS and talk.trajectory.dones == [False, True]
    env = Guess(EnvironmentConfig(max_steps=1))  # a tool may take the last step
    step = HermesParser().render_call("environment_step", {"action": "3"})
    talk = with_tools(engine_of([step, "5"]), None, EnvironmentStepTool(env))
    assert talk.run_episode(env, "")["num_turns"] == 2
    assert talk.trajectory.stop_reason is StopReason.MAX_STEPS and talk.trajectory.dones[-1]


def test_an_environment_that_breaks_is_the_cause_of_the_error_and_the_record_says_so():
    talk = MultiTurnInferenceEngine(engine_of(["4"], ["7"]))
    with pytest.raises(EngineError, match=r"Broken.step raised KeyError: '4'") as caught:
        talk.run_episode(Broken(), "")
    assert isinstance(caught.value.__cause__, EpisodeError) and isinstance(caught.value.__cause__.__cause__, KeyError)
    assert talk.trajectory.stop_reason is StopReason.FAILED
    assert talk.run_episode(Guess(), "")["total_reward"] == 1.0


# -- a real model --------------------------------------------------------------------------------------------------


class EvenCalls(ActionParser):
    """For models that know no call format: an answer of an even number of characters calls `add`."""

    def parse_all(self, text: str) -> list[ParsedAction]:
        found = ParsedAction(tool_name="add", parameters={"a": len(text), "b": 1}, raw_text=text, success=True)
        return [found] if len(text) % 2 == 0 else []


@pytest.fixture(scope="module")
def model() -> Any:
    """Random, but for a head that ends an answer at about every twelfth token."""
    model = small_model(Qwen3Config, Renderer(byte_tokenizer()), initializer_range=0.1, tie_word_embeddings=False)
    head = torch.nn.Linear(32, 261)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        head.bias.zero_()
        head.bias[byte_tokenizer().eos_token_id] = 3.2
    model.lm_head = head
    return model


def local(model: Any, **options: Any) -> LocalInferenceEngine:
    return LocalInferenceEngine(model, byte_tokenizer(), temperature=1.0, top_p=1.0, **options)


def assert_rescored(model: Any, trajectory: Trajectory) -> None:
    """One plain forward pass over every segment gives the log-probabilities that were recorded when sampling."""
    for segment in trajectory.segments:
        expected = token_logprobs(model, segment.token_ids)
        mask = torch.tensor(segment.loss_mask[1:])
        recorded = torch.tensor(segment.sampled_logprobs[1:])
        assert mask.any() and (recorded - expected)[mask].abs().max() < logit_tolerance(model, len(segment.token_ids))
        assert all(math.isnan(value) for value in recorded[~mask])


@pytest.mark.parametrize("keep_thoughts", [True, False])
def test_rescoring_a_conversation_gives_the_sampled_log_probabilities(model, keep_thoughts):
    with local(model) as engine:
        talk = with_tools(engine, EvenCalls(), max_turns=100, max_tool_calls_per_cot=9, keep_thoughts=keep_thoughts)
        talk.start_conversation("Hello")
        for number in range(4):
            talk.step(f"Message {number}" if number else None, max_tokens=200)
            while talk.awaits_policy:
                talk.step(max_tokens=200)
        trajectory = talk.trajectory
        assert engine.core.stats.num_reused_tokens > 0
    assert len(trajectory.segments) == (1 if keep_thoughts else 4)
    assert len(trajectory.turns) > 4 and trajectory.num_calls == len(trajectory.turns) - 4
    assert_rescored(model, trajectory)


def test_a_conversation_can_be_repeated_and_another_seed_is_another_one(model):
    def first_words(**sampling: Any) -> str:
        talk.start_conversation("Hello")
        return talk.step(max_tokens=200, **sampling)["response"]

    with local(model) as engine:
        talk = MultiTurnInferenceEngine(engine)
        assert first_words() == first_words() != first_words(seed=1)
        assert talk.trajectory.seed == engine.sampling(seed=1).seed
        assert first_words(temperature=0) == first_words(temperature=0, seed=1)


def test_a_conversation_that_waits_for_its_user_holds_nobody_up(model):
    with local(model, deterministic=True, max_num_seqs=1) as engine:
        talk = MultiTurnInferenceEngine(engine)
        talk.start_conversation("Hello")
        talk.step(max_tokens=200)
        assert engine.generate(["one", "two"], max_tokens=3).lengths
        assert talk.step("More", max_tokens=200)
        assert_rescored(model, talk.trajectory)


def test_an_episode_whose_prompt_fills_the_engines_context_fails(model):
    with local(model, max_seq_len=60) as engine:
        talk = MultiTurnInferenceEngine(engine)
        for opening in ("x" * 100, "x" * 500):
            with pytest.raises(EngineError, match=r"prompt has \d+ tokens and fills the engine's context"):
                talk.run_episode(None, opening)
            with pytest.raises(EngineError, match="fills the engine's context"):
                talk.run_episode(Guess(), opening)
            assert talk.trajectory.stop_reason is StopReason.FAILED
        talk.start_conversation("x" * 100)
        with pytest.raises(EngineError, match="fill the engine's context"):
            talk.step()
        assert talk.trajectory.stop_reason is StopReason.LENGTH


def test_an_engine_stays_its_callers(model):
    with local(model) as engine:
        talk = MultiTurnInferenceEngine(engine)
        talk.start_conversation("Hello")
        del talk
        gc.collect()
        assert engine.generate("Hello", max_tokens=2).sequences
    with pytest.raises(EngineError, match="was shut down"):
        MultiTurnInferenceEngine(engine).run_episode(None, "Hello")

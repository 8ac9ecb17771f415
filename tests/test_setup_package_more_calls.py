"""More calls of the setup package's users: each runs, or raises an error that names the replacement. Issue 23, item 5."""

import dataclasses
import importlib
from dataclasses import dataclass

import pytest
import torch

from midthought import (
    ActionParser,
    BaseEnvironment,
    BaseInferenceEngine,
    BatchInferenceManager,
    ConfigStore,
    GenerationOutput,
    JSONActionParser,
    KLController,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    ParsedAction,
    PolicyHead,
    PPOBatch,
    QueryTool,
    RayPPOTrainer,
    RolloutData,
    ScriptedInferenceEngine,
    Tool,
    ToolCall,
    ToolDefinition,
    ToolParameter,
    ToolRegistry,
    TrainerCallback,
    Trajectory,
    Turn,
    algo,
    create_default_config,
    create_inference_engine,
    merge_configs,
)

ONES = torch.ones(2, 3)


class Echo(Tool):
    def __init__(self):
        super().__init__(ToolDefinition("echo", "Says it again.", [ToolParameter("text", "string", "What to say.")]))

    def execute(self, text, **kwargs):
        return text


class Room(BaseEnvironment):
    def reset(self):
        return "A door."

    def step(self, action):
        return f"You {action}.", 1.0, True, {}


@pytest.fixture(scope="module")
def engine():
    with ScriptedInferenceEngine(["Hello.<|im_end|>"] * 20) as engine:
        yield engine


@pytest.fixture(scope="module")
def trainer():
    config = create_default_config(
        model={"hidden_size": 16, "num_layers": 1, "vocab_size": 300},
        inference={"max_tokens": 8},
        training={"batch_size": 2, "mini_batch_size": 2},
    )
    with RayPPOTrainer(config, Room(), progress=False) as trainer:
        yield trainer


CALL = '{"tool": "echo", "parameters": {"text": "hi"}}'


# -- forms that run ------------------------------------------------------------------------------------------------


def test_parts_take_their_registry_under_other_names():
    registry = ToolRegistry(tools=[Echo()])
    parser = JSONActionParser(registry=registry)
    manager = MultiTurnManager(registry=registry, parser=parser, env=Room(), max_turns=4)
    assert (parser.tool_registry, manager.tool_registry) == (registry, registry)
    assert manager.step(response=CALL, observation="A door.").tool_call.result == "hi"


def test_a_parser_of_ones_own_returns_none_if_there_is_no_call():
    class Quoted(ActionParser):
        def parse(self, text):
            return ParsedAction(name="echo", arguments={"text": text[1:-1]}) if text.startswith('"') else None

    manager = MultiTurnManager(ToolRegistry([Echo()]), Quoted())
    assert [manager.step(text, "obs").observation for text in ('"hi"', "hi")] == ["hi", "obs"]


def test_a_parser_of_ones_own_that_returns_something_else_is_named():
    class Pair(ActionParser):
        def parse(self, text):
            return "echo", {"text": text}

    with pytest.raises(TypeError, match=r"Pair\.parse returned \('echo', .*return ParsedAction\(tool_name="):
        Pair().parse_all("hi")


def test_records_take_other_names():
    assert ToolCall(name="echo", args={"text": "hi"}) == ToolCall(tool_name="echo", parameters={"text": "hi"})
    turn = Turn(turn=2, response="hi", environment_obs="A door.")
    assert (turn["turn"], turn["response"], turn["observation"], turn["tool_result"]) == (2, "hi", "A door.", None)
    assert (turn.get("reward"), turn.get("price", 3)) == (0.0, 3)
    with pytest.raises(KeyError, match=r"Known: .*model_output"):
        turn["reply"]
    assert len(RolloutData([Trajectory()])) == 1


def test_settings_are_read_as_dataclasses_and_dicts():
    config = create_default_config(training={"gamma": 0.9})
    assert dataclasses.asdict(config)["training"]["gamma"] == 0.9
    assert dataclasses.replace(config.training, lam=0.5).gamma == 0.9
    assert {each.name for each in dataclasses.fields(config)} == set(config.to_dict())
    assert ConfigStore.from_dict(config.to_dict()) == config


def test_the_modules_of_the_setup_package_have_the_public_names():
    for module, name in [
        ("env", "BaseEnvironment"),
        ("algo", "KLController"),
        ("inference", "create_inference_engine"),
        ("tools", "ToolRegistry"),
        ("trainer", "RayPPOTrainer"),
    ]:
        public = importlib.import_module("midthought")
        assert getattr(importlib.import_module(f"midthought.{module}"), name) is getattr(public, name)
    with pytest.raises(ImportError, match="cannot import name 'Nope'"):
        exec("from midthought.tools import Nope")


def test_an_output_of_an_engine_is_made_by_hand():
    output = GenerationOutput(sequences=["a"], tokens=torch.ones(1, 1), log_probs=torch.zeros(1, 1))
    assert (len(output), output.lengths, output.finishes) == (1, [], [])


def test_engines_take_other_names_of_max_tokens_and_of_the_model(engine):
    assert engine.generate(["a"], max_new_tokens=1).lengths == [1]
    assert BatchInferenceManager(engine).generate_batch(["a"], max_new_tokens=1).lengths == [1]
    with create_inference_engine(model_name="m", backend="scripted", config={"script": ["a"]}) as other:
        assert other.generate(["x"]).sequences == ["a"]


def test_algo_takes_further_names():
    gae, _ = algo.compute_gae_advantage_return(
        rewards=ONES, values=ONES * 0, eos_mask=ONES, gamma=1.0, lam=1.0, whiten=False
    )
    assert gae.tolist() == [[3.0, 2.0, 1.0]] * 2
    grpo, _ = algo.compute_grpo_advantage(rewards=ONES, mask=ONES, group_ids=["a", "a"])
    same, _ = algo.compute_advantage(adv_estimator="grpo", rewards=ONES, mask=ONES, uid=["a", "a"])
    assert grpo.tolist() == same.tolist() == [[0.0] * 3] * 2
    given = {"vpreds": ONES, "values": ONES, "returns": 2 * ONES}
    assert float(algo.compute_value_loss(**given, eos_mask=ONES, clip_range=0.5)[0]) == 0.5
    rewards, _ = algo.apply_kl_penalty(
        rewards=ONES, old_log_probs=ONES, ref_log_prob=0 * ONES, eos_mask=ONES, kl_coef=0.5
    )
    assert rewards.tolist() == [[0.5] * 3] * 2
    controller = KLController(kl_coef=0.1, target=1.0, kl_horizon=100)
    assert controller.update(kl=2.0, batch_size=10) == pytest.approx(0.1 * 1.02)


# -- forms that name the replacement -------------------------------------------------------------------------------


def of_class(given):
    class Own(BaseInferenceEngine):
        def __init__(self):
            super().__init__(*given)

        def shutdown(self):
            pass

    return Own()


class NamedTool(Echo):
    def __init__(self):
        Tool.__init__(self, name="echo", description="", parameters=[])


class Silent(BaseInferenceEngine):
    def __init__(self):
        pass

    def generate(self, prompts, **kwargs):
        return GenerationOutput(["a"] * len(prompts), torch.zeros(1, 1), torch.zeros(1, 1))

    def shutdown(self):
        pass


@dataclass
class Settings:
    difficulty: str = "easy"


REPLACED = {
    "a result in a definition": (lambda: ToolDefinition("a", "b", [], returns="text"), "in description"),
    "required of a definition": (lambda: ToolDefinition("a", "b", {}, required=["x"]), "ToolParameter required="),
    "items of a parameter": (lambda: ToolParameter("a", "array", items={"type": "string"}), "schema="),
    "a misspelled argument": (lambda: ToolParameter("a", descripton="x"), "Did you mean 'description'"),
    "a tool's parts": (NamedTool, r"ToolDefinition\(name"),
    "a tool's name": (lambda: Echo().name, r"tool\.definition\.name"),
    "a tool's check": (lambda: Echo().validate_parameters({}), r"ToolRegistry\.arguments"),
    "a definition as OpenAI's": (lambda: Echo().definition.to_openai(), r"json_schema\(\)"),
    "the list of tools": (lambda: ToolRegistry().list_tools(), r"names\(\)"),
    "the tools' description": (lambda: ToolRegistry().get_tools_description(), "get_system_prompt"),
    "a tool removed": (lambda: ToolRegistry().unregister("a"), "another ToolRegistry"),
    "a tool with its name": (lambda: ToolRegistry().register("a", Echo()), r"register\(tool\)"),
    "arguments as a mapping": (lambda: ToolRegistry().execute_tool("a", {"x": 1}), r"\(name, /, \*\*parameters\)"),
    "a query of an environment": (lambda: QueryTool(Room()), "EnvironmentStepTool"),
    "a call by position": (lambda: ParsedAction("a", {}, "raw", True), r"ParsedAction\(\*, tool_name="),
    "a call's error": (lambda: ToolCall(tool_name="a", error="no"), "success=False"),
    "a record of steps": (lambda: Trajectory(states=["a"], actions=["b"]), "assign its lists"),
    "a step of a record": (lambda: Trajectory().add_step("a", "b", 1.0, True), r"states\.append"),
    "a record's reward": (lambda: Trajectory().total_reward, r"sum\(trajectory\.rewards\)"),
    "data of a rollout": (lambda: RolloutData().add_trajectory(Trajectory()), r"trajectories\.append"),
    "history of a manager": (lambda: MultiTurnManager(ToolRegistry(), JSONActionParser()).get_history(), "use turns"),
    "turn of a manager": (lambda: MultiTurnManager(ToolRegistry(), JSONActionParser()).current_turn, "len"),
    "a model's name as an engine": (lambda: of_class(["m"]), r"super\(\).__init__ takes .*ScriptedInferenceEngine"),
    "an engine without its base": (lambda: MultiTurnInferenceEngine(Silent()).start_conversation("a"), r"super\(\)"),
    "a tensor batch": (lambda: PPOBatch(input_ids=ONES), r"train_step\(trajectories\)"),
    "sizes of a head": (lambda: PolicyHead(hidden_size=8, vocab_size=9), "causal LM"),
    "a number as a policy": (lambda: PolicyHead(8), "causal LM"),
    "steps without rows": (lambda: algo.compute_grpo_advantage(ONES, ONES, group_size=2), r"groups=\[0, 0, 1, 1\]"),
    "ends of episodes": (lambda: algo.compute_gae_advantage_return(ONES, ONES, ONES, dones=ONES), "one episode"),
    "a mask of the divergence": (lambda: algo.kl_divergence(ONES, ONES, response_mask=ONES), r"\* mask"),
    "a controller of the penalty": (
        lambda: algo.apply_kl_penalty(ONES, ONES, ONES, ONES, kl_ctrl=3),
        r"controller\.coef",
    ),
    "a controller's value": (lambda: KLController(0.1).get_kl_coef(), r"controller\.coef"),
    "settings updated": (lambda: ConfigStore().training.update({"gamma": 1.0}), "merge_configs"),
    "a dotted setting": (lambda: merge_configs(ConfigStore(), {"training.gamma": 1.0}), r"\{'training': \{'gamma'"),
    "sections by name": (lambda: merge_configs(ConfigStore(), training={}), "nested mappings"),
    "three settings": (lambda: merge_configs(ConfigStore(), {}, {}), r"merge_configs\(base, changes"),
    "a mapping as parameters": (lambda: Room({"difficulty": "hard"}), "subclass: class MyConfig"),
    "a dataclass as parameters": (lambda: Room(Settings()), "subclass: class MyConfig"),
    "a mapping as settings": (
        lambda: RayPPOTrainer({"training": {}}, Room()),
        r"create_default_config\(\*\*sections\)",
    ),
}


@pytest.mark.parametrize("form", REPLACED)
def test_an_error_names_the_replacement(form):
    write, remedy = REPLACED[form]
    with pytest.raises((TypeError, AttributeError, ValueError), match=remedy):
        write()


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"n": 2}, r"\[prompt\] \* n"),
        ({"stop": ["x"]}, "cut the text"),
        ({"sampling_params": {}}, "by name"),
        ({"do_sample": True}, "temperature=0"),
        ({"temperature": "hot"}, "temperature='hot': give a number"),
    ],
)
def test_an_engine_names_the_replacement_of_an_option(engine, given, remedy):
    with pytest.raises((TypeError, ValueError), match=remedy):
        engine.generate(["a"], **given)


@pytest.mark.parametrize("prompts", [None, 3, [1, 2], [None], torch.ones(1, 2)])
def test_an_engine_takes_texts_and_messages_only(engine, prompts):
    with pytest.raises(ValueError, match="text"):
        engine.generate(prompts)


def test_a_conversation_names_the_replacements(engine):
    talk = MultiTurnInferenceEngine(engine)
    with pytest.raises(TypeError, match=r"MultiTurnInferenceEngine\(engine, system_prompt="):
        talk.start_conversation("a", system_prompt="b")
    with pytest.raises(AttributeError, match="format_conversation"):
        talk.conversation_history  # noqa: B018
    with pytest.raises(TypeError, match="tool_manager="):
        MultiTurnInferenceEngine(engine, tool_registry=ToolRegistry())


@pytest.mark.parametrize(
    ("write", "remedy"),
    [
        (lambda trainer: trainer.rollout(num_episodes=4), "batch_size"),
        (lambda trainer: trainer.fit(resume_from_checkpoint="x"), "resume=True"),
        (lambda trainer: trainer.fit(callbacks=[]), "to the trainer"),
        (lambda trainer: trainer.policy, r"trainer\.model"),
        (lambda trainer: trainer.global_step, "iteration"),
        (lambda trainer: trainer.train(), r"fit\(\)"),
        (lambda trainer: trainer.close(), r"cleanup\(\)"),
    ],
)
def test_a_trainer_names_the_replacement(trainer, write, remedy):
    with pytest.raises((TypeError, AttributeError), match=remedy):
        write(trainer)


def test_a_callback_that_would_never_be_called_is_an_error():
    class Own(TrainerCallback):
        def on_epoch_end(self, trainer, epoch):
            raise AssertionError

    with pytest.raises(ValueError, match=r"Own\.on_epoch_end is never called.*on_step"):
        RayPPOTrainer(create_default_config(), Room(), callbacks=[Own()])

"""Calls as users of the setup package write them, one test per form; only the import differs."""

import copy
import functools
import json
import math
import pickle
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
import torch

from midthought import (
    ActionParser,
    BaseEnvironment,
    ConfigStore,
    EnvironmentConfig,
    FunctionCallingParser,
    JSONActionParser,
    ModelConfig,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    ParsedAction,
    RayPPOTrainer,
    ReActActionParser,
    RolloutData,
    ScriptedInferenceEngine,
    SettingsError,
    Task,
    Tool,
    ToolCall,
    ToolDefinition,
    ToolParameter,
    ToolRegistry,
    TrainingConfig,
    Trajectory,
    Turn,
    algo,
    create_default_config,
    create_inference_engine,
    merge_configs,
)
from midthought.engines.create import BACKENDS, IN_PROCESS_BACKENDS
from midthought.errors import RecordError

OLD = torch.zeros(1, 2)
NEW = torch.tensor([[1.5, 0.5]]).log()
ONES = torch.ones(1, 2)


# -- math ----------------------------------------------------------------------------------------------------------


def test_the_module_algo_has_its_functions():
    names = ["compute_gae_advantage_return", "compute_grpo_advantage", "compute_policy_loss", "compute_value_loss"]
    names += ["apply_kl_penalty", "kl_divergence", "KLController", "AdvantageEstimator", "compute_advantage"]
    assert set(names) <= set(dir(algo)) and all(callable(getattr(algo, name)) for name in names)


def test_grpo_and_an_advantage_by_name_take_the_groups_as_index():
    rewards, mask = torch.tensor([[3.0], [1.0]]), torch.ones(2, 1)
    advantages, _ = algo.compute_grpo_advantage(token_level_rewards=rewards, response_mask=mask, index=["a", "a"])
    torch.testing.assert_close(advantages, torch.tensor([[1.0], [-1.0]]) / math.sqrt(2), atol=1e-5, rtol=0)
    advantages, _ = algo.compute_advantage("dr_grpo", rewards, mask, index=[0, 0])
    assert advantages.tolist() == [[1.0], [-1.0]]


def test_gae_takes_its_arguments_by_name():
    _, returns = algo.compute_gae_advantage_return(
        token_level_rewards=ONES, values=OLD, response_mask=ONES, gamma=1.0, lam=1.0
    )
    assert returns.tolist() == [[2.0, 1.0]]


def test_the_policy_loss_takes_one_clip_ratio_or_two_by_name():
    given = {"old_log_probs": OLD, "log_probs": NEW, "advantages": ONES, "response_mask": ONES}
    loss, _ = algo.compute_policy_loss(**given, clip_ratio=0.3)
    assert float(loss) == pytest.approx(-(1.3 + 0.5) / 2)
    loss, _ = algo.compute_policy_loss(**given, clip_ratio=0.3, clip_high=0.4)
    assert float(loss) == pytest.approx(-(1.4 + 0.5) / 2)
    with pytest.raises(TypeError, match="5 were given"):
        algo.compute_policy_loss(OLD, NEW, ONES, ONES, 0.3)


def test_the_value_loss_takes_its_arguments_by_name():
    loss, _ = algo.compute_value_loss(
        vpreds=ONES, returns=2 * ONES, old_values=OLD, response_mask=ONES, cliprange_value=0.5
    )
    assert float(loss) == pytest.approx(0.5 * 1.5**2)


def test_the_kl_penalty_takes_its_kind():
    given = {"log_probs": OLD + 1, "ref_log_probs": OLD, "response_mask": ONES, "kl_coef": 0.1}
    rewards, mean = algo.apply_kl_penalty(token_level_rewards=ONES, **given)
    assert rewards.flatten().tolist() == pytest.approx([0.9, 0.9]) and float(mean) == 1.0
    rewards, _ = algo.apply_kl_penalty(ONES, **given, kl_penalty="mse")
    assert rewards.flatten().tolist() == pytest.approx([0.95, 0.95])
    assert algo.kl_divergence(log_probs=OLD + 1, ref_log_probs=OLD, kl_penalty="kl").tolist() == [[1.0, 1.0]]


def test_a_kl_controller_is_adaptive_or_keeps_its_coefficient():
    controller = algo.KLController(init_kl_coef=0.1, target_kl=6.0, adaptive=True, horizon=100)
    assert controller.update(current_kl=12.0, n_steps=10) == pytest.approx(0.1 * (1 + 0.2 * 10 / 100))
    assert controller.value == controller.coef
    controller = algo.KLController(init_kl_coef=0.1, target_kl=6.0, adaptive=False)
    assert controller.update(current_kl=12.0, n_steps=10) == 0.1
    with pytest.raises(ValueError, match="target_kl"):
        algo.KLController(init_kl_coef=0.1, adaptive=True)


# -- tools and parsers ---------------------------------------------------------------------------------------------


class Search(Tool):
    def __init__(self, documents):
        self.documents = documents
        super().__init__(
            ToolDefinition(
                name="search",
                description="Finds a document.",
                parameters=[ToolParameter(name="query", type="string", description="The words.", required=True)],
            )
        )

    def execute(self, query, **kwargs):
        return self.documents[query]


class Room(BaseEnvironment):
    def reset(self):
        return "A door."

    def step(self, action):
        return f"You {action}.", 1.0, action == "leave", {}


class Act(Tool):
    def __init__(self, env):
        super().__init__(
            ToolDefinition("act", "Acts.", [ToolParameter("action", "string", "What to do.", required=True)])
        )
        self.env = env

    def execute(self, action, **kwargs):
        observation, reward, *_ = self.env.step(action)
        return f"{observation} {reward}"


def searching():
    registry = ToolRegistry()
    registry.register(Search({"sky": "blue"}))
    return registry


CALL = '{"tool": "search", "parameters": {"query": "sky"}}'


@pytest.fixture
def registry():
    return searching()


@pytest.fixture
def manager(registry):
    return MultiTurnManager(registry, JSONActionParser(registry), max_turns=3)


def test_a_tool_with_attributes_of_its_own_gives_its_definition_to_the_base_class_and_is_found_by_name(registry):
    assert registry.execute_tool("search", query="sky") == (True, "blue")
    assert registry.get_tool("search").documents == {"sky": "blue"} and registry.get_tool("no") is None


def test_a_tool_that_holds_an_environment_steps_it():
    env = Room()
    env.reset()
    registry = ToolRegistry()
    registry.register(Act(env))
    manager = MultiTurnManager(registry, JSONActionParser(registry), env)
    turn = manager.step('{"tool": "act", "parameters": {"action": "leave"}}', "A door.")
    assert turn.tool_call.result == "You leave. 1.0" and not manager.should_continue()


@pytest.mark.parametrize(("parser", "text"), [
    (JSONActionParser, CALL),
    (ReActActionParser, 'Thought: I look.\nAction: search\nAction Input: {"query": "sky"}\n'),
    (FunctionCallingParser, '<function_calls>{"tool_name": "search", "parameters": {"query": "sky"}}</function_calls>'),
])  # fmt: skip
def test_a_parser_takes_the_registry(parser, text, registry):
    action = parser(registry).parse(text)
    assert (action.tool_name, action.parameters, action.success) == ("search", {"query": "sky"}, True)
    assert MultiTurnManager(registry, parser(registry)).step(text).tool_call.result == "blue"


def test_a_parser_of_ones_own_passes_the_registry_on(registry):
    class First(ActionParser):
        def __init__(self, registry):
            super().__init__(registry)

        def parse(self, text):
            return ParsedAction(tool_name=next(iter(self.tool_registry)), parameters={"query": text}, raw_text=text)

    assert MultiTurnManager(registry, First(registry)).step("sky").tool_call.result == "blue"


# -- turns ---------------------------------------------------------------------------------------------------------


def test_turns_are_counted_from_one_and_observe_the_tools_result_or_else_the_environment(manager):
    turns = [manager.step(text, environment_obs="a door") for text in (CALL, "I know.")]
    assert [(turn.turn_number, turn.observation) for turn in turns] == [(1, "blue"), (2, "a door")]
    assert [turn["turn"] for turn in manager.get_episode_summary()["turns"]] == [1, 2]


def test_a_manager_of_ones_own_reads_its_parts_and_the_summary_becomes_json(registry):
    class Loud(MultiTurnManager):
        def step(self, model_output, environment_obs=None):
            action = self.action_parser.parse(model_output)
            assert self.tool_registry.get_tool(action.tool_name) is not None and self.environment is None
            return super().step(model_output, environment_obs)

    manager = Loud(registry, JSONActionParser(registry))
    manager.step(CALL, "obs")
    summary = json.loads(json.dumps(manager.get_episode_summary(), default=asdict))
    assert summary["turns"][0]["tool_call"]["result"] == "blue" and summary["tools_used"] == ["search"]


# -- records -------------------------------------------------------------------------------------------------------


def test_records_have_defaults():
    assert not ParsedAction().success and ParsedAction(tool_name="search").success
    assert not ParsedAction(tool_name="search", error="no such tool").success
    assert not ToolCall() and ToolCall(tool_name="search", parameters={"query": "sky"}, result="blue").result == "blue"
    assert (Turn().turn_number, Turn().model_output, Turn(turn_number=2, model_output="a").done) == (1, "", False)


def test_a_trajectory_is_filled_by_hand_at_once_or_step_by_step():
    trajectory = Trajectory()
    trajectory.states, trajectory.actions = ["a", "b"], ["x", "y"]
    trajectory.rewards, trajectory.dones = [0.5, 1.0], [False, True]
    assert (trajectory.states, trajectory.actions, trajectory.dones) == (["a", "b"], ["x", "y"], [False, True])
    assert len(trajectory) == 2 and trajectory.get_return(gamma=0.5) == 1.0
    assert len(RolloutData(trajectories=[trajectory])) == 1
    trajectory = Trajectory()
    trajectory.actions.append("x")
    trajectory.log_probs.append(-0.5)
    assert (trajectory.actions, trajectory.log_probs, trajectory.states) == (["x"], [-0.5], [])


def test_the_lists_of_recorded_turns_cannot_be_assigned():
    with pytest.raises(RecordError, match="recorded turns"):
        Trajectory(Task(task_id="t", prompt="", answer=""), [1]).rewards = [1.0]


# -- settings ------------------------------------------------------------------------------------------------------


def test_the_models_name_is_its_path():
    config = ConfigStore()
    with pytest.warns(UserWarning, match="local_path"):
        config.model.model_name = "Qwen/Qwen3-0.6B"
    with pytest.warns(UserWarning, match="local_path"):
        assert config.model.model_name == config.model.local_path == "Qwen/Qwen3-0.6B"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_settings_are_given_to_the_constructors_and_merged_under_their_former_names():
    assert ModelConfig(model_name="m").local_path == "m"
    assert ConfigStore(model={"model_name": "m"}).model.local_path == "m"
    assert create_default_config(model={"model_name": "m"}).model.local_path == "m"
    assert merge_configs(ConfigStore(), {"inference": {"multi_turn": False}}).inference.max_turns == 1


def test_the_number_of_gpus_of_a_server():
    config = ConfigStore()
    config.model.tensor_parallel_size = 2
    for frozen in (config.frozen(), config.frozen().frozen()):
        assert frozen.inference.server_flags == ["--tensor-parallel-size", "2"]
    config.model.tensor_parallel_size = 1
    assert config.frozen().inference.server_flags == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_code_of_a_model_is_never_run_and_the_error_names_the_replacement():
    config = ConfigStore()
    config.model.trust_remote_code = False
    assert config.model.trust_remote_code is False
    with pytest.raises(SettingsError, match=r"local_path.*Trainer\(model="):
        config.model.trust_remote_code = True
    with pytest.raises(SettingsError, match="local_path"):
        ModelConfig(trust_remote_code=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_kl_penalty_and_several_turns_are_switched_off_and_on():
    training = ConfigStore().training
    training.use_kl_in_reward = False
    assert training.kl_coef == 0 and training.use_kl_in_reward is False
    training.use_kl_in_reward = True
    assert training.kl_coef == 0.01
    training.kl_coef = 0.2
    training.use_kl_in_reward = True
    assert training.kl_coef == 0.2 and training.use_kl_in_reward is True
    with pytest.raises(SettingsError, match="kl_coef"):
        training.use_kl_in_reward = "no"
    inference = ConfigStore().inference
    inference.multi_turn = True
    assert inference.max_turns == 5
    inference.multi_turn = False
    assert inference.max_turns == 1 and inference.multi_turn is False


class OwnEnvironmentConfig(EnvironmentConfig):
    difficulty: str = "easy"


@dataclass
class DataclassConfig(EnvironmentConfig):
    difficulty: str = "easy"
    places: list = field(default_factory=list)


@pytest.mark.parametrize("kind", [OwnEnvironmentConfig, DataclassConfig])
def test_the_section_of_the_environment_has_parameters_of_ones_own(kind):
    section = kind(difficulty="hard", max_steps=3)
    config, changed = ConfigStore(environment=section), create_default_config()
    changed.environment = section
    created = create_default_config(environment=section)
    for found in (config, changed, created, config.frozen(), merge_configs(ConfigStore(), config)):
        assert (type(found.environment), found.environment.difficulty, found.environment.max_steps) == (kind, "hard", 3)
        assert found.to_dict()["environment"]["difficulty"] == "hard"
    assert merge_configs(config, {"environment": {"difficulty": "easy"}}).environment.difficulty == "easy"
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config  # noqa: S301
    with pytest.raises(SettingsError, match="Did you mean 'difficulty'"):
        merge_configs(config, {"environment": {"dificulty": "easy"}})


def test_a_path_object_is_a_path():
    config = create_default_config(model={"local_path": Path("m")}, checkpoint={"output_dir": Path("runs") / "one"})
    config.model.local_path = Path("n")
    assert (config.model.local_path, config.checkpoint.output_dir) == ("n", "runs/one")


def test_sections_are_given_as_objects_and_settings_merged_into_each_other():
    config = create_default_config(training=TrainingConfig(learning_rate=1e-5))
    merged = merge_configs(config, create_default_config(training={"gamma": 0.9}))
    assert (merged.training.learning_rate, merged.training.gamma) == (1e-5, 0.9)
    assert json.loads(json.dumps(merged.to_dict())) == merged.to_dict()
    assert ConfigStore(**merged.to_dict()) == merged


OF_VLLM = {"dtype": "bfloat16", "tensor_parallel_size": 2, "max_model_len": 512}


@pytest.fixture
def made(monkeypatch):
    """What the constructor of each engine receives; no engine starts."""
    found = {}
    for table in (BACKENDS, IN_PROCESS_BACKENDS):
        for name in table.keys() - {"scripted"}:
            make = functools.wraps(table[name])(lambda model, **given: found.update(given))
            monkeypatch.setitem(table, name, make)
    return found


FLAGS = {"server_flags": ["--tensor-parallel-size", "2"]}


@pytest.mark.parametrize(("backend", "options", "given"), [
    ("vllm", {}, FLAGS),
    ("sglang", {}, FLAGS),
    ("vllm", {"in_process": True}, {"engine_args": {"tensor_parallel_size": 2}}),
    ("local", {}, {}),
])  # fmt: skip
def test_an_engine_takes_vllms_names(backend, options, given, made):
    ignored = pytest.warns(UserWarning, match="tensor_parallel_size") if backend == "local" else nullcontext()
    with ignored:
        create_inference_engine("m", backend=backend, config=OF_VLLM, **options)
    assert made == {"dtype": "bfloat16", "max_seq_len": 512, **given}


def test_a_scripted_engine_takes_vllms_names_and_ignores_them():
    with pytest.warns(UserWarning, match="is ignored"):
        engine = create_inference_engine(backend="scripted", config={**OF_VLLM, "script": ["Hello."]})
    assert engine.generate(["Hi"]).sequences[0].startswith("Hello.")
    engine.shutdown()


def test_an_engine_never_runs_the_code_of_a_model(made):
    with pytest.raises(SettingsError, match="transformers contains"):
        create_inference_engine("m", backend="vllm", config={"trust_remote_code": True})


# -- conversations -------------------------------------------------------------------------------------------------


@pytest.fixture
def talk(manager):
    engine = ScriptedInferenceEngine([f"{CALL}<|im_end|>It is blue.<|im_end|>Bye.<|im_end|>", "Leave"])
    yield MultiTurnInferenceEngine(engine, tool_manager=manager, enable_tools=True)
    engine.shutdown()


def test_a_step_takes_the_sampling_and_the_environments_observation(talk):
    talk.start_conversation("What colour is the sky?")
    first = talk.step(max_tokens=100, temperature=0.7, environment_obs="a door")
    second = talk.step(max_tokens=100, temperature=0.7, environment_obs="a door")
    third = talk.step(max_tokens=100, temperature=0.7, environment_obs="a wall")
    assert [each["response"] for each in (first, second, third)] == [CALL, "It is blue.", "Bye."]
    assert (first["tool_result"], second["tool_result"]) == ("blue", None)
    assert [turn.observation for turn in talk.tool_manager.turns] == ["blue", "a door", "a wall"]
    assert talk.format_conversation().count("a door") == 1


def test_the_summary_of_an_episode_counts_its_turns_from_one(talk):
    env = Room()
    summary = talk.run_episode(env, "Go.", max_turns=2, max_tokens=200)
    assert [turn["turn"] for turn in summary["turns"]] == [1, 2]
    assert summary["turns"][0]["tool_call"].result == "blue"


# -- the trainer ---------------------------------------------------------------------------------------------------


@pytest.fixture
def config():
    return create_default_config(
        model={"hidden_size": 16, "num_layers": 1, "vocab_size": 300},
        inference={"max_tokens": 8, "max_turns": 1},
        training={"batch_size": 2, "mini_batch_size": 2, "validate_every": 0, "num_epochs": 1},
    )


def test_a_trainer_takes_the_setup_packages_arguments_and_reports_its_losses(config):
    trainer = RayPPOTrainer(config=config, environment=Room(), reward_fn=lambda trajectory: 1.0, dataset=None)
    trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    assert [row["epoch"] for row in trainer.metrics_history] == [1, 2]
    for row in trainer.metrics_history:
        assert all(math.isfinite(row[name]) for name in ("total_loss", "policy_loss", "value_loss"))
        assert row["total_loss"] == row["loss"] and row["value_loss"] > 0
    trainer.cleanup()


def test_the_output_folder_is_a_setting(config, tmp_path):
    config.checkpoint.output_dir = str(tmp_path / "run")
    with RayPPOTrainer(config, Room(), reward_fn=lambda trajectory: sum(trajectory.rewards)) as trainer:
        trainer.fit(num_iters_per_epoch=1)
    assert (tmp_path / "run" / "config.yaml").is_file()


def test_a_trajectory_filled_by_hand_cannot_be_trained_on(config):
    trajectory = Trajectory()
    trajectory.states, trajectory.actions, trajectory.rewards, trajectory.dones = ["a"], ["b"], [1.0], [True]
    with RayPPOTrainer(config, Room()) as trainer, pytest.raises(RecordError, match="carries no tokens"):
        trainer.train_step([trajectory])


# -- the manifest's own examples -----------------------------------------------------------------------------------


class Configured(Room):
    def __init__(self, config):
        super().__init__(config)
        self.name = "room"


def test_the_manifests_test_of_an_environment():
    config = ConfigStore()
    env = Configured(config.environment)
    obs = env.reset()
    obs, reward, done, info = env.step("leave")
    assert (obs, reward, done, info, env.name) == ("You leave.", 1.0, True, {}, "room")


def test_the_manifests_settings_of_algorithm_engine_and_ray():
    config = create_default_config()
    config.training.adv_estimator = "grpo"
    config.inference.backend = "vllm"
    config.ray.use_ray = True
    config.ray.num_actors = 4
    assert merge_configs(config, {"training": {"learning_rate": 1e-6}}).ray.num_actors == 4

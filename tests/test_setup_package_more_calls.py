"""More calls of the setup package's users: each runs, or raises an error that says what to write."""

import dataclasses
import importlib
from dataclasses import dataclass

import pytest
import torch
from test_setup_package_calls import Room, searching

import midthought
from midthought import (
    ActionParser,
    BaseInferenceEngine,
    ConfigStore,
    GenerationOutput,
    MultiTurnManager,
    ParsedAction,
    PolicyHead,
    QueryTool,
    RayPPOTrainer,
    RolloutData,
    ScriptedInferenceEngine,
    TrainerCallback,
    Trajectory,
    Turn,
    create_default_config,
    merge_configs,
)


def test_a_parser_of_ones_own_returns_none_if_there_is_no_call_and_is_named_if_it_returns_something_else():
    class Quoted(ActionParser):
        def parse(self, text):
            if text.startswith('"'):
                return ParsedAction(tool_name="search", parameters={"query": text[1:-1]})

    manager = MultiTurnManager(searching(), Quoted())
    assert [manager.step(text, "obs").observation for text in ('"sky"', "sky")] == ["blue", "obs"]

    class Pair(ActionParser):
        def parse(self, text):
            return "search", {"query": text}

    with pytest.raises(TypeError, match=r"Pair\.parse returned \('search', .*return ParsedAction\(tool_name="):
        Pair().parse_all("hi")


def test_a_turn_is_read_as_a_mapping():
    turn = Turn(turn_number=2, model_output="hi", observation="A door.")
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
    names = {"env": "BaseEnvironment", "algo": "KLController", "inference": "create_inference_engine"}
    for module, name in {**names, "tools": "ToolRegistry", "trainer": "RayPPOTrainer"}.items():
        assert getattr(importlib.import_module(f"midthought.{module}"), name) is getattr(midthought, name)
    with pytest.raises(ImportError, match="cannot import name 'Nope'"):
        exec("from midthought.tools import Nope")


def test_an_output_of_an_engine_is_made_by_hand():
    output = GenerationOutput(sequences=["a"], tokens=torch.ones(1, 1), log_probs=torch.zeros(1, 1))
    assert (len(output), output.lengths, output.finishes) == (1, [], [])


class Own(BaseInferenceEngine):
    def __init__(self):
        super().__init__("m")

    def shutdown(self):
        pass


@dataclass
class Settings:
    difficulty: str = "easy"


REPLACED = {
    "a query of an environment": (lambda: QueryTool(Room()), "EnvironmentStepTool"),
    "a model's name as an engine": (Own, r"super\(\).__init__ takes .*ScriptedInferenceEngine"),
    "a number as a policy": (lambda: PolicyHead(8), "causal LM"),
    "a dotted setting": (lambda: merge_configs(ConfigStore(), {"training.gamma": 1.0}), r"\{'training': \{'gamma'"),
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


def test_an_engine_takes_texts_and_messages_only_and_names_a_wrong_option():
    with ScriptedInferenceEngine(["Hello.<|im_end|>"]) as engine:
        for prompts in (None, 3, [1, 2], [None], torch.ones(1, 2)):
            with pytest.raises(ValueError, match="text"):
                engine.generate(prompts)
        with pytest.raises(ValueError, match="temperature='hot': Input should be a valid number"):
            engine.generate(["a"], temperature="hot")


def test_a_callback_that_would_never_be_called_is_an_error():
    class Own(TrainerCallback):
        def on_epoch_end(self, trainer, epoch):
            raise AssertionError

    with pytest.raises(ValueError, match=r"Own\.on_epoch_end is never called.*on_step"):
        RayPPOTrainer(create_default_config(), Room(), callbacks=[Own()])

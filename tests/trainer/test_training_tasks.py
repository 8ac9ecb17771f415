import asyncio
import gc
import time
import weakref

import pytest
from small_environments import QUESTIONS, Colours, settings, twice

from midthought import SettingsError, SimpleGameEnvironment, ToolRegistry, find_call_format, load_tasks
from midthought.config import EnvironmentConfig
from midthought.env.episode import EpisodeError
from midthought.env.reward_functions import RewardError
from midthought.env.rewards import combine_rewards
from midthought.trainer import tasks
from midthought.trainer.sources import PromptBuilder
from midthought.trainer.tasks import DatasetTasks, EnvironmentTasks, make_tasks
from midthought.types import Task, Trajectory, Turn

# -- environments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [SimpleGameEnvironment, SimpleGameEnvironment(), lambda: SimpleGameEnvironment()])
def test_a_class_an_instance_or_a_function_that_names_no_config_gets_the_settings(given):
    config = settings()
    config.environment.max_steps = 7
    ground = EnvironmentTasks(given, None, config)
    assert ground.episode(ground.stream.draw(0, 1)[0]).environment.config == config.environment
    assert ground.held_out_episode(ground.held_out(1)[0]).environment.config.max_steps == 7


def test_a_class_whose_constructor_knows_no_config_is_called_as_it_is():
    class Sized(Colours):
        def __init__(self, size=3):
            self.size = size

    ground = EnvironmentTasks(Sized, None, settings())
    assert ground.episode(ground.stream.draw(0, 1)[0]).environment.size == 3


def limited(max_steps):
    return SimpleGameEnvironment(EnvironmentConfig(max_steps=max_steps))


def test_a_config_of_its_own_that_differs_is_refused_with_both_values():
    words = r"SimpleGameEnvironment\.config\.max_steps is 5, config\.environment\.max_steps is 10; .*max_steps=5"
    with pytest.raises(SettingsError, match=words):
        EnvironmentTasks(limited(5), None, settings())
    with pytest.raises(SettingsError, match=words):
        EnvironmentTasks(SimpleGameEnvironment, None, settings(), validation=limited(5))
    with pytest.raises(SettingsError, match=words):
        EnvironmentTasks(lambda: limited(5), None, settings()).stream.draw(0, 1)


def test_held_out_starts_are_the_same_every_time_and_not_those_of_training():
    ground = EnvironmentTasks(SimpleGameEnvironment, None, settings())
    first, second = ground.held_out(4), ground.held_out(4)
    assert [task.prompt for task in first] == [task.prompt for task in second]
    assert {task.task_id for task in first}.isdisjoint(task.task_id for task in ground.stream.draw(0, 4))
    assert ground.held_out(9)[:4] == first


def test_another_environment_may_be_what_is_evaluated_on():
    class Harder(Colours):
        def reset(self, seed=0):
            return "Harder: " + super().reset(seed)

    ground = EnvironmentTasks(Colours, None, settings(), validation=Harder)
    task = ground.held_out(1)[0]
    assert task.prompt.startswith("Harder: Say")
    assert type(ground.held_out_episode(task).environment) is Harder
    assert not any(text.startswith("Harder") for text in ground.texts()), "words are learned from training's starts"


@pytest.mark.parametrize("validation", [4, "gsm8k", QUESTIONS], ids=["number", "name", "tasks"])
def test_what_is_no_environment_beside_one_is_refused_by_its_name(validation):
    words = r"validation=.*another BaseEnvironment, or a function that returns one; None: other starts"
    with pytest.raises(SettingsError, match=words):
        EnvironmentTasks(Colours, None, settings(), validation=validation)


def test_the_starts_whose_words_were_read_are_let_go():
    living = weakref.WeakSet()

    class Counted(Colours):
        def reset(self, seed=0):
            living.add(self)
            return super().reset(seed)

    ground = EnvironmentTasks(Counted, None, settings())
    assert len(ground.texts()) == 200
    for _ in range(1_000):  # the event loop's thread lets the last one go a moment after its reset has returned
        gc.collect()
        if not living:
            break
        time.sleep(0.01)
    assert len(living) == 0


# -- data sets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [["Why?"], [Task(task_id="t", prompt="Why?", answer="")]])
def test_tasks_without_an_answer_need_a_reward_of_ones_own(dataset):
    with pytest.raises(SettingsError, match=r"dataset: task .* has no answer.*reward_fn"):
        DatasetTasks(dataset, None, settings())
    assert DatasetTasks(dataset, combine_rewards([len]), settings()).num_tasks == 1


def score(tasks, renderer, answer):
    """The reward of an episode with this answer."""
    task = tasks.stream.draw(0, 1)[0]
    episode = Trajectory(task, [1])
    episode.add_demonstrated(renderer.control(f"</think>{answer}<|im_end|>"))
    episode.end_turn(Turn(model_output=f"</think>{answer}", begins_in_thought=True))
    return asyncio.run(tasks.episode(task).score(episode))


def test_the_settings_weights_judge_where_no_reward_function_is_given(renderer):
    config = settings()
    config.reward.correct, config.reward.thought = 2.0, 0.0
    ground = DatasetTasks(QUESTIONS, None, config)
    assert [score(ground, renderer, answer).parts["correct"] for answer in ("red", "blue")] == [2.0, 0.0]


def test_a_reward_function_has_the_deadline_of_the_settings(renderer):
    config = settings()
    config.environment.step_timeout_seconds = 0.05
    ground = make_tasks(config, None, QUESTIONS, None, lambda trajectory: time.sleep(0.5), [])
    with pytest.raises(EpisodeError, match=r"0\.05 seconds"):
        score(ground, renderer, "red")


def test_a_reward_function_that_expects_the_answer_is_refused_because_rows_have_no_environment():
    def equal(completion, answer):
        return float(completion == answer)

    with pytest.raises(RewardError, match=r"'equal' takes \(completion, answer\).*None.*task\.answer.*matched\(f\)"):
        DatasetTasks(QUESTIONS, combine_rewards([equal]), settings())
    for shared in (lambda trajectory, env: 1.0, lambda trajectory, _: 1.0, lambda trajectory, environment=None: 1.0):
        assert DatasetTasks(QUESTIONS, combine_rewards([("shared", 1.0, shared)]), settings()).num_tasks


def test_held_out_tasks_are_the_first_of_validation():
    ground = DatasetTasks(QUESTIONS[:1], None, settings(), validation=QUESTIONS)
    assert ground.held_out(9)[:2] == ground.held_out(2) == load_tasks(QUESTIONS)[:2] and len(ground.held_out(9)) == 3
    assert ground.has_held_out and not DatasetTasks(QUESTIONS, None, settings()).has_held_out
    assert ground.longest_prompt(lambda task: len(task.prompt)) == max(len(row["question"]) for row in QUESTIONS)


def test_the_longest_prompt_is_found_among_those_that_are_counted_also_if_earlier_messages_make_it_long(monkeypatch):
    monkeypatch.setattr(tasks, "MAX_COUNTED", 1)
    question = {"role": "user", "content": "Why?"}
    asked, said = ({"role": role, "content": "a longer text"} for role in ("user", "assistant"))
    rows = [{"prompt": said, "answer": "A"} for said in ("A longer question?", [asked, said, question])]
    assert DatasetTasks(rows, None, settings()).longest_prompt(lambda task: len(task.before)) == 2


def test_an_episode_begins_with_the_system_prompt_the_tools_and_what_the_data_set_says_before_the_question():
    said = [{"role": role, "content": f"{role}."} for role in ("system", "user", "assistant", "user")]
    (task,) = load_tasks([{"prompt": said, "answer": "So."}])
    prompts = PromptBuilder("Be short.", ToolRegistry([twice]), find_call_format("hermes"))
    told, *others = prompts.messages(task)
    assert told["role"] == "system" and others == said[1:]
    assert told["content"] == f"Be short.\n\n{prompts.instructions()}\n\nsystem."
    assert PromptBuilder("", ToolRegistry(), find_call_format("hermes")).messages(task) == said

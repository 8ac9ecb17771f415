"""What counts as the answer and as a well-formed thought."""

from midthought.env.answer_matching import normalised
from midthought.env.rewards import is_well_formed, last_answer
from midthought.types import Completion, Finish, StopReason, Task, Trajectory, Turn


def episode_of_turns(*outputs: str, begins_in_thought: bool = False) -> Trajectory:
    trajectory = Trajectory(Task(task_id="t", prompt="Who?", answer="Ada"), [0])
    for number, output in enumerate(outputs):
        trajectory.add_sampled(Completion(token_ids=(1,), sampled_logprobs=(-1.0,), finish=Finish.END))
        trajectory.end_turn(Turn(turn_number=number, model_output=output, begins_in_thought=begins_in_thought))
    return trajectory


TURNS = [
    (["Bob", "<think>hm</think> Ada "], "Ada", "Ada"),
    (["hm</think>Ada"], "Ada", "Ada"),
    (["<think>Ada"], None, None),
    (["hm</think>Bob<think>Ada"], None, None),
    (["hm</think>"], "", ""),
    (["hm</think>Ada", "Bob"], "Bob", None),
    ([], None, None),
]


def test_the_last_answer_is_read_from_the_last_turn_without_its_thought():
    for outputs, last, last_after_an_opening in TURNS:
        assert last_answer(episode_of_turns(*outputs)) == last
        assert last_answer(episode_of_turns(*outputs, begins_in_thought=True)) == last_after_an_opening


THOUGHTS = [
    (["hm</think>Ada"], True, True),
    (["<think>hm</think>Ada"], False, True),
    (["<think>hm</think>Ada"], True, False),
    (["hm</think>Ada"], False, False),
    (["hm Ada"], True, False),
    (["hm</think>Ada<think>hm</think>Ada"], True, False),
    (["hm</think>"], True, False),
    (["hm</think>Bob", "hm</think>Ada"], True, False),
    (["<think>hm</think>Bob", "Ada"], False, True),
]


def test_a_well_formed_thought_is_opened_once_closed_once_and_followed_by_an_answer():
    for outputs, begins_in_thought, well_formed in THOUGHTS:
        done = episode_of_turns(*outputs, begins_in_thought=begins_in_thought)
        done.stop_reason = StopReason.ANSWERED
        assert is_well_formed(done) is well_formed


def test_a_thought_in_an_episode_that_was_cut_off_is_not_well_formed():
    done = episode_of_turns("hm</think>Ada", begins_in_thought=True)
    for done.stop_reason in [reason for reason in StopReason if reason.is_truncated]:
        assert not is_well_formed(done)


def test_normalising_twice_changes_nothing_more():
    for text in ("Ada_Lovelace — 1815!", "ΑΣ ς", "ŉ", "A\u00a0b"):
        assert normalised(normalised(text)) == normalised(text)

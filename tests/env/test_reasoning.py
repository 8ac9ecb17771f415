"""What counts as the answer and as a well-formed thought: the policy's own words only. A token is a word here."""

from midthought.env.reasoning import final_answer, is_well_formed, last_answer, normalised, own_text
from midthought.types import Completion, Finish, StopReason, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory, Turn

WORDS: list[str] = []


def ids(text: str) -> list[int]:
    words = text.split()
    WORDS.extend(word for word in words if word not in WORDS)
    return [WORDS.index(word) for word in words]


def decode(token_ids) -> str:
    return " ".join(WORDS[token_id] for token_id in token_ids)


def episode(*parts: str, prompt: str = "Who ? <think>", end: StopReason = StopReason.ANSWERED) -> Trajectory:
    """What the policy and the tool wrote, in turns."""
    trajectory = Trajectory(Task(task_id="t", prompt="Who?", answer="Ada"), ids(prompt))
    for number, part in enumerate(parts):
        token_ids = ids(part)
        if number % 2:
            event = ToolEvent(call=ToolCall(tool_name="look", result=part), outcome=ToolOutcome.OK)
            trajectory.add_results([event], token_ids)
        else:
            logprobs = (-1.0,) * len(token_ids)
            trajectory.add_sampled(
                Completion(token_ids=tuple(token_ids), sampled_logprobs=logprobs, finish=Finish.CALL)
            )
    trajectory.stop_reason = end
    return trajectory


def test_the_answer_follows_the_last_closed_thought_and_the_end_token_is_no_part_of_it():
    done = episode("hm </think> Bob <think> no </think> Ada <end>")
    assert final_answer(done, decode, ["<end>"]) == "Ada"


def test_without_a_closed_thought_there_is_no_answer():
    assert final_answer(episode("Ada <end>"), decode, ["<end>"]) is None


def test_a_thought_that_a_tool_closed_and_an_answer_that_it_gave_count_for_nothing():
    done = episode("I look", "</think> Ada", "so")
    assert own_text(done, decode) == "I look\nso"
    assert final_answer(done, decode) is None and not is_well_formed(done, decode)


def test_what_a_tool_says_after_the_thought_is_no_part_of_the_answer():
    assert final_answer(episode("hm </think> I say", "Ada", "Bob"), decode) == "I say\nBob"


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
    ("Who ? <think>", "hm </think> Ada <end>", True),
    ("Who ?", "<think> hm </think> Ada <end>", True),
    ("Who ? <think>", "<think> hm </think> Ada <end>", False),
    ("Who ?", "hm </think> Ada <end>", False),
    ("Who ? <think>", "hm Ada <end>", False),
    ("Who ? <think>", "hm </think> Ada <think> hm </think> Ada <end>", False),
    ("Who ? <think>", "hm </think> <end>", False),
]


def test_a_well_formed_thought_is_opened_once_closed_once_and_followed_by_an_answer():
    for prompt, written, well_formed in THOUGHTS:
        assert is_well_formed(episode(written, prompt=prompt), decode, ["<end>"]) is well_formed


def test_a_thought_in_an_episode_that_was_cut_off_is_not_well_formed():
    for end in [reason for reason in StopReason if reason.is_truncated]:
        assert not is_well_formed(episode("hm </think> Ada", end=end), decode)


def test_normalising_twice_changes_nothing_more():
    for text in ("Ada_Lovelace — 1815!", "ΑΣ ς", "ŉ", "A\u00a0b"):
        assert normalised(normalised(text)) == normalised(text)

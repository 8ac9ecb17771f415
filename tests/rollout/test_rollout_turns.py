"""An episode turn by turn: chat calls run at the turn's end, turns recorded, thoughts kept or dropped."""

from collections.abc import Sequence
from typing import Any

import pytest
from playing import Add, Host, play_turns, spoken

from midthought.engines.scripted import byte_tokenizer
from midthought.env.rewards import last_answer
from midthought.errors import SettingsError
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.call_formats.json_calls import HermesFormat
from midthought.types import Reward, SpanKind, StopReason, ToolOutcome, Trajectory

NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class PayingHost(Host):
    """Pays 0.25 for each turn and 1 at the end."""

    async def reply(self, trajectory: Trajectory) -> str | None:
        trajectory.turns[-1].reward = 0.25
        return await super().reply(trajectory)

    async def score(self, trajectory: Trajectory) -> Reward:
        return Reward(parts={"end": 1.0}, turns=tuple(turn.reward for turn in trajectory.turns))


def renderer_with(template: str | None = None) -> Renderer:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    return Renderer(tokenizer)


def play(
    texts: Sequence[str], call_format: Any, *, renderer: Renderer, replies: Sequence[str] = (), **limits: Any
) -> Trajectory:
    turns = [text + "<|im_end|>" for text in texts]
    options = {"call_format": call_format, "tools": [Add()], "environment": lambda task: PayingHost(replies)}
    trajectory = play_turns(turns, renderer, **options, **limits)
    trajectory.check()
    return trajectory


def call(a: int, b: int) -> str:
    return HermesFormat().render_call("add", {"a": a, "b": b})


def test_all_calls_of_a_chat_turn_are_run_at_its_end_and_answered_as_tool_messages():
    renderer = renderer_with()
    first = f"Let me see. {call(2, 3)} {call(10, 20)} done"
    trajectory = play([first, "It is 5."], HermesFormat(), renderer=renderer)
    assert spoken(trajectory, renderer)[1:] == [
        (SpanKind.SAMPLED, first + "<|im_end|>"),
        (SpanKind.RESULT, "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>tool\n30<|im_end|>\n<|im_start|>assistant\n"),
        (SpanKind.SAMPLED, "It is 5.<|im_end|>"),
    ]
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK, ToolOutcome.OK]
    assert trajectory.stop_reason is StopReason.ANSWERED


def test_every_answer_is_a_turn_with_its_words_its_call_and_what_came_back():
    trajectory = play([f"Hm. {call(2, 3)}", "Five", "Six"], HermesFormat(), renderer=renderer_with(), replies=["Sure?"])
    first, second, third = trajectory.turns
    assert first.tool_call.result == "5" and first.parsed_action is not None and first.observation == "5"
    assert (second.model_output, second.observation, bool(second.tool_call)) == ("Five", "Sure?", False)
    assert (third.model_output, third.done, third.observation) == ("Six", True, None)
    assert trajectory.states == ["Who?", "5", "Sure?"] and trajectory.actions[1:] == ["Five", "Six"]
    assert trajectory.dones == [False, False, True]
    assert trajectory.rewards == [0.0, 0.25, 1.25] and trajectory.get_return() == 1.5
    assert trajectory.get_return(0.5) == 0.0 + 0.125 + 0.3125
    assert trajectory.log_probs == pytest.approx([-0.5 * len(run) for run in trajectory.sampled_runs()])


OPENS_THOUGHTS = NO_TOOL_ROLE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")


@pytest.mark.parametrize(
    ("template", "said", "answer"),
    [(OPENS_THOUGHTS, "Five", None), (OPENS_THOUGHTS, "Hm.</think>Five", "Five"), (None, "Five", "Five")],
)
def test_a_turn_knows_whether_the_template_opened_a_thought_for_it(template, said, answer):
    trajectory = play([said], HermesFormat(), renderer=renderer_with(template))
    assert trajectory.turns[0].begins_in_thought is (template is OPENS_THOUGHTS)
    assert last_answer(trajectory) == answer


def test_the_turn_of_a_call_format_that_stops_at_calls_goes_on_after_the_result():
    written = 'Let me add. <think>#call add {"a": 2, "b": 3}</think>Five'
    trajectory = play([written], InThoughtFormat(), renderer=renderer_with())
    (turn,) = trajectory.turns
    assert turn.model_output == 'Let me add. <think>#call add {"a": 2, "b": 3}\n</think>Five'
    assert turn.tool_call.result == "5" and turn.observation is None


def test_a_call_in_the_last_allowed_turn_is_not_run():
    trajectory = play([call(1, 1), call(2, 2)], HermesFormat(), renderer=renderer_with(), max_turns=2)
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.num_calls == 1 and len(trajectory) == 2


def test_a_budget_that_is_spent_ends_the_episode_and_what_happened_is_recorded():
    cut = play([call(1, 1) * 9], HermesFormat(), renderer=renderer_with(), max_tokens=90)
    assert cut.stop_reason is StopReason.LENGTH
    assert cut.num_calls == 0 and len(cut) == 1 and not cut.turns[0].done
    unfit = play([call(1, 1)], HermesFormat(), renderer=renderer_with(), max_tokens=len(call(1, 1)) + 9)
    assert unfit.stop_reason is StopReason.LENGTH and unfit.num_calls == 1
    assert [span.kind for span in unfit.spans] == [SpanKind.PROMPT, SpanKind.SAMPLED]
    texts = [f"{call(1, 1)}{call(2, 2)}", "Two", call(3, 3), "Six"]
    few = play(texts, HermesFormat(), renderer=renderer_with(), replies=["And three?"], max_tool_calls_per_cot=1)
    outcomes = [event.outcome for event in few.tool_events]
    assert outcomes == [ToolOutcome.OK, ToolOutcome.NO_CALLS_LEFT, ToolOutcome.OK], "the budget is of one reply"


def test_a_template_that_refuses_the_tool_role_gets_results_as_the_users_words():
    renderer = renderer_with(NO_TOOL_ROLE)
    trajectory = play([call(2, 3), "5"], HermesFormat(), renderer=renderer)
    assert spoken(trajectory, renderer)[2][1] == "\n<|im_start|>user\n5<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_takes_no_second_user_turn_says_so():
    refused = "{% if messages|length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
    once = refused + "{% for m in messages %}{{ m.content }}{% endfor %}"
    trajectory = play(["Hello"], InThoughtFormat(), renderer=renderer_with(once), replies=["More"])
    assert trajectory.stop_reason is StopReason.FAILED and "one turn only" in (trajectory.error or "")
    with pytest.raises(SettingsError, match="one turn only"):
        renderer_with(once).following([{"role": "user", "content": "x"}])

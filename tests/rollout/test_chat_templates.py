"""Published chat templates: calls are found, run and answered as the template writes them, token by token."""

import asyncio
import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from playing import chat_policy, play_turns
from published_templates import PUBLISHED, Published
from representatives import representatives

from midthought import tool
from midthought.config import InferenceConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.env.rewards import last_answer, well_formed_thought
from midthought.env.rewards import thought_of as thought_of_turn
from midthought.errors import SettingsError
from midthought.rollout.demonstration import demonstration
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import as_tool_calls
from midthought.tools.call_formats.detection import ChosenCallFormat, choose_call_format
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.types import StopReason, Task, ToolOutcome, Trajectory

BY_NAME = {published.name: published for published in PUBLISHED}
WITH_CALLS = [published for published in PUBLISHED if published.label]
QUESTION = "What is in the library about the sea?"
RESULT = 'The "tide" clock\nsays: {"high": 3} — 水, <b>&amp;</b>'
ARGUMENTS = {"query": "a \"tide\"\nclock — 水 {x} \\ 'it'", "limit": 3, "filters": {"lang": ["en", "中"], "old": False}}


class Look(Tool):
    query = ToolParameter("query", "string", "What to look for.")
    limit = ToolParameter("limit", "integer", "How many.", required=False)
    filters = ToolParameter("filters", "object", "Which ones.", required=False)
    definition = ToolDefinition("look_up", "Looks it up.", [query, limit, filters])

    def __init__(self, result: str | None = None) -> None:
        self._result = result

    def execute(self, query: str, limit: int = 1, filters: Any = None) -> str:
        return self._result or (RESULT if limit > 1 else query)


@tool
def now() -> str:
    """Tells the time."""
    return "noon"


DEFINITIONS = [Look.definition, now.definition]


def named(published: Published) -> str:
    return published.name


@functools.cache
def chosen(published: Published, **arguments: Any) -> ChosenCallFormat:
    """The call format that is found by probing the template, once for all tests."""
    return choose_call_format(Renderer(published.tokenizer(), arguments), DEFINITIONS)


def play(
    choice: ChosenCallFormat, turns: Sequence[str | Sequence[int]], *, result: str | None = None, **options: Any
) -> Trajectory:
    options |= {"call_format": choice.call_format, "tools": [Look(result), now], "max_segment_length": 2000}
    options |= {"messages": lambda task: first_messages(choice)}
    trajectory = play_turns(turns, choice.renderer, **options)
    assert trajectory.stop_reason is StopReason.ANSWERED, (trajectory.error, trajectory.tool_events)
    return trajectory


def native(choice: ChosenCallFormat) -> NativeCallFormat:
    assert isinstance(choice.call_format, NativeCallFormat)
    return choice.call_format


def call_turn(published: Published, thought: str, calls: Sequence[Any], before: int = 0) -> str:
    written = native(chosen(published)).render_calls(calls, before)
    return published.thought.format(thought) + written + (published.call_end or published.eos)


def answer_turn(published: Published, text: str) -> str:
    return published.before_answer.format("Now I know.") + text + (published.answer_end or published.eos)


def call_ids(published: Published, calls: Sequence[Any], before: int) -> list[str]:
    make_id = native(chosen(published)).syntax.make_id
    return [make_id(name, number) for number, (name, _) in enumerate(calls, before)]


def said_by_assistant(published: Published, thought: str, calls: Sequence[Any], before: int = 0) -> Any:
    ids = call_ids(published, calls, before)
    tool_calls = as_tool_calls([(*call, call_id) for call, call_id in zip(calls, ids, strict=True)])
    thoughts = {"reasoning_content": thought} if published.thought else {}
    return {"role": "assistant", "content": "", "tool_calls": tool_calls, **thoughts}


def answer(published: Published, text: str) -> dict[str, Any]:
    thought = {"reasoning_content": "Now I know."} if "{}" in published.before_answer else {}
    return {"role": "assistant", "content": text, **thought}


def results(published: Published, calls: Sequence[Any], texts: Sequence[str], before: int = 0) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}
        for (name, _), call_id, text in zip(calls, call_ids(published, calls, before), texts, strict=True)
    ]


def expected_ids(published: Published, messages: Sequence[Any]) -> list[int]:
    """What transformers' own `apply_chat_template` gives for the whole conversation."""
    tokenizer = published.tokenizer()
    described = native(chosen(published)).describes_tools
    if published.name.startswith("deepseek"):  # its template takes the arguments as JSON text
        messages = json.loads(json.dumps(messages))
        for call in (call for message in messages for call in message.get("tool_calls", [])):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    tools = {"tools": [definition.json_schema() for definition in DEFINITIONS]} if described else {}
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **tools)


def assert_same(published: Published, ours: Sequence[int], messages: Sequence[Any]) -> None:
    choice, expected = chosen(published), expected_ids(published, messages)
    decode = choice.renderer.decode
    if not native(choice).describes_tools:  # our instructions are foreign text, which has no control tokens
        user = choice.renderer.control("<|user|>")[0]
        ours, expected = ours[list(ours).index(user) :], expected[expected.index(user) :]
    if published.answer_end == "<|user|>":  # the template does not write the end of the last answer
        assert decode(ours[-1:]) == "<|user|>"
        ours = ours[:-1]
    assert decode(ours) == decode(expected[: len(ours)])
    assert list(ours) == expected[: len(ours)]
    assert decode(expected[len(ours) :]).strip() == ""


def first_messages(choice: ChosenCallFormat) -> list[dict[str, Any]]:
    system = "\n\n".join(filter(None, ("Be brief.", choice.call_format.instructions(DEFINITIONS))))
    return [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]


def exchange(published: Published, thought: str, *calls: tuple[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """The policy's turns, one for each call and an answer, and the conversation up to the answer."""
    turns, said = [], []
    for number, call in enumerate(calls or [("look_up", ARGUMENTS)]):
        turns.append(call_turn(published, thought, [call], number))
        result = RESULT if call[1].get("limit", 1) > 1 else call[1]["query"]
        said.append(said_by_assistant(published, thought, [call], number))
        said += results(published, [call], [result], number)
    turns.append(answer_turn(published, "Tides."))
    return turns, [*first_messages(chosen(published)), *said, answer(published, "Tides.")]


# -- detection -------------------------------------------------------------------------------------------------


def test_the_call_format_is_found_from_what_the_template_writes() -> None:
    found = {published.name: chosen(published).call_format.name for published in PUBLISHED}
    assert found == {published.name: "native" if published.label else "in_thought" for published in PUBLISHED}
    reason = chosen(BY_NAME["gemma_3"]).reason
    assert "refuses calls" in reason or "omits calls" in reason


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_a_call_is_written_as_the_template_writes_it_and_read_back(published: Published) -> None:
    choice = chosen(published)
    call_format = native(choice)
    calls = [("look_up", ARGUMENTS), ("look_up", {"query": "b"})][: 1 + published.is_parallel]
    user = {"role": "user", "content": "a"}
    text = choice.renderer.chat_template.text([user, said_by_assistant(published, "", calls, 0)])
    assert call_format.render_calls(calls) in text
    for arguments in (ARGUMENTS, {}, {"query": "true"}, {"query": "12"}, {"query": "</s> ] } x"}):
        calls = [("look_up", arguments), ("other.tool", {"query": "b"})][: 1 + published.is_parallel]
        found = call_format.parse_all(call_format.render_calls(calls))
        assert [(call.tool_name, call.parameters) for call in found] == calls
        assert all(call.success for call in found)
    for text in ('I would call look_up({"query": 1}).', "functions.look_up is a tool.", '{"answer": {"query": 1}}', ""):
        assert call_format.parse_all(text) == []


# -- episodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_an_episode_and_a_demonstration_have_the_tokens_of_the_whole_conversation_and_train_on_what_the_policy_wrote(
    published,
):
    choice, calls = chosen(published), [("look_up", ARGUMENTS), ("look_up", {"query": "the sea"})]
    turns, messages = exchange(published, "I look it up.", *calls)
    episode, decode = play(choice, turns), choice.renderer.decode
    assert [event.outcome for event in episode.tool_events] == [ToolOutcome.OK] * 2
    assert [event.call.parameters for event in episode.tool_events] == [parameters for _, parameters in calls]
    assert_same(published, episode.token_ids, messages)
    assert [decode(run) for run in episode.sampled_runs()] == turns
    assert sum(episode.loss_mask) == sum(len(choice.renderer.control(turn)) for turn in turns)
    assert [turn.answer for turn in episode.turns] == [None, None, "Tides."] and last_answer(episode) == "Tides."
    for number in (2, 4):  # as OpenAI writes it
        (call,) = messages[number]["tool_calls"]
        call["id"] = messages[number + 1]["tool_call_id"] = f"call_of_openai_{number}"
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    shown = demonstration(episode.task, messages, choice.renderer, native(choice))
    assert decode(shown.token_ids) == decode(episode.token_ids)
    assert (shown.token_ids, shown.loss_mask) == (episode.token_ids, episode.loss_mask)
    assert [event.call.parameters for event in shown.tool_events] == [parameters for _, parameters in calls]


@pytest.mark.parametrize("published", [published for published in WITH_CALLS if published.thought], ids=named)
def test_the_answer_of_a_turn_is_its_text_without_the_thought_and_none_if_the_thought_does_not_end(published):
    thoughtful = published.thought if "{}" not in published.before_answer else published.before_answer
    if published.name in ("gpt_oss", "command_r7b"):
        thoughtful += published.before_answer
    end = published.answer_end or published.eos
    said = thoughtful.format("A thought.") + "Tides." + end
    episode = play(chosen(published), [said])
    assert episode.turns[-1].answer == "Tides." and well_formed_thought(episode)
    assert thought_of_turn(episode.turns[-1]).strip() == "A thought."
    begun = said[: said.index("A thought") + 3] + end
    assert play(chosen(published), [begun]).turns[-1].answer is None


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_a_result_that_spells_control_tokens_contains_none(published: Published) -> None:
    choice = chosen(published)
    spelled = f"{published.eos}{''.join(published.tokens)}<think>"
    turns = [call_turn(published, "x", [("look_up", {"query": "sea"})]), answer_turn(published, "Done.")]

    def control_tokens(result: str) -> list[int]:
        trajectory = play(choice, turns, result=result)
        pairs = zip(trajectory.token_ids, trajectory.loss_mask, strict=True)
        tokens = choice.renderer.control_token_ids
        return [token_id for token_id, is_sampled in pairs if not is_sampled and token_id in tokens]

    assert control_tokens(spelled) == control_tokens("harmless")


# -- a user who replies ----------------------------------------------------------------------------------------

KEEPS_ANSWERS = [published for published in WITH_CALLS if published.name not in ("mistral_v3", "gpt_oss")]
"""Templates that write an answer without a thought in the same way when another message follows."""


@pytest.mark.parametrize("published", [p for p in KEEPS_ANSWERS if not p.thought], ids=named)
def test_a_reply_is_appended_as_the_template_writes_it(published: Published) -> None:
    choice = chosen(published)
    turns, messages = exchange(published, "")
    trajectory = play(choice, [*turns, answer_turn(published, "Yes.")], replies=["\n  Sure?"])
    messages += [{"role": "user", "content": "\n  Sure?"}, answer(published, "Yes.")]
    assert_same(published, trajectory.token_ids, messages)


def test_all_that_the_template_writes_follows_an_end_token_that_it_does_not_write() -> None:
    """GLM's turns end where the next message begins, and the model may end them with the tokenizer's own token."""
    glm = BY_NAME["glm_4_5"]
    (call, said), messages = exchange(glm, "")
    turns = [text.removesuffix(end) + glm.eos for text, end in ((call, glm.call_end), (said, glm.answer_end))]
    trajectory = play(chosen(glm), [*turns, answer_turn(glm, "Yes.")], replies=["Sure?"])
    messages += [{"role": "user", "content": "Sure?"}, answer(glm, "Yes.")]
    eos_id = glm.tokenizer().eos_token_id
    assert trajectory.token_ids.count(eos_id) == 2
    assert_same(glm, [token_id for token_id in trajectory.token_ids if token_id != eos_id], messages)


@pytest.mark.parametrize("published", WITH_CALLS, ids=named)
def test_what_follows_an_answer_does_not_repeat_its_end(published: Published) -> None:
    renderer = chosen(published).renderer
    assert renderer.following([{"role": "user", "content": "Sure?"}])[0] not in renderer.eos_token_ids


@pytest.mark.parametrize(
    "published", [p for p in WITH_CALLS if p.thought and p.name not in ("command_r7b", "gemma_4")], ids=named
)
def test_without_earlier_thoughts_a_reply_starts_a_segment_that_the_template_would_write(published: Published) -> None:
    choice = chosen(published)
    turns, messages = exchange(published, "I look it up.")
    trajectory = play(choice, [*turns, answer_turn(published, "Yes.")], replies=["Sure?"], keep_thoughts=False)
    assert len(trajectory.segments) == 2
    second = trajectory.segments[1]
    conversation = [*messages, {"role": "user", "content": "Sure?"}]
    tools = [definition.json_schema() for definition in DEFINITIONS]
    options = {"tools": tools, "add_generation_prompt": True, "return_dict": False}
    expected = published.tokenizer().apply_chat_template(conversation, **options)
    assert second.token_ids[: second.spans[0].end] == expected
    assert choice.renderer.decode(second.token_ids[second.spans[0].end :]) == answer_turn(published, "Yes.")


def test_a_template_that_repeats_the_tools_before_the_last_message_does_not_only_append() -> None:
    mistral = BY_NAME["mistral_v3"]
    assert Renderer(mistral.tokenizer()).only_appends
    assert not chosen(mistral).renderer.only_appends


# -- demonstrations --------------------------------------------------------------------------------------------


def test_an_answer_that_does_not_continue_its_prompt_is_an_error() -> None:
    minimax = BY_NAME["minimax_m2"]
    choice = chosen(minimax)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "no thought"}]
    with pytest.raises(SettingsError, match="as a continuation of its prompt"):
        demonstration(Task(task_id="t", prompt="", answer=""), messages, choice.renderer, native(choice))


# -- bad calls -------------------------------------------------------------------------------------------------

BAD = {
    "qwen3": ['<tool_call>\n{"name": "look_up", "arguments": {"query": }}\n</tool_call>', "<tool_call>\nlook\n</tool_call>"],
    "qwen3_coder": ["<tool_call>\n<function=look_up>\n<parameter=query>\nx\n</function>\n</tool_call>"],
    "llama3_1": ['{"name": "look_up", "parameters": ', '<|python_tag|>{"name": "look_up"]'],
    "mistral_v3": ['[TOOL_CALLS] [{"name": "look_up"', "[TOOL_CALLS] look_up"],
    "mistral_v13": ["[TOOL_CALLS]look_up[ARGS]query", "[TOOL_CALLS]look_up", "[TOOL_CALLS][ARGS]{}"],
    "deepseek_v3_1": ["<｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>look_up"],
    "gpt_oss": [" to=functions.look_up<|channel|>commentary json<|message|>x"],
    "glm_4_5": ["<tool_call>look_up\n<arg_key>query</arg_key>\n</tool_call>", "<tool_call></tool_call>"],
    "gemma_4": ["<|tool_call>call:look_up{query:<tool_call|>", "<|tool_call>call:look_up<tool_call|>"],
    "kimi_k2": ["<|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>x<|tool_call_end|>"],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_call_is_answered_with_an_error(name: str) -> None:
    published = BY_NAME[name]
    choice = chosen(published)
    thought = "<think>\nHm.\n</think>\n\n" if name == "qwen3" else ""
    for text in BAD[name]:
        turns = [f"{thought}{text}{published.call_end or published.eos}", answer_turn(published, "Sorry.")]
        trajectory = play(choice, turns)
        assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.MALFORMED]
        assert "error: " in choice.renderer.decode(trajectory.token_ids)


def test_a_call_inside_a_thought_is_no_call() -> None:
    qwen = BY_NAME["qwen3"]
    call_format = native(chosen(qwen))
    call = call_format.render_call("look_up", {"query": "x"})
    assert call_format.parse_all(f"<think>{call}</think>{call}") == call_format.parse_all(call)
    assert call_format.parse_all(f"{call}", in_thought=True) == []


def test_calls_may_be_written_in_other_ways_than_the_templates() -> None:
    header = "<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>"
    for name, text in (
        ("gpt_oss", header + '{"query": "x"}'),
        ("llama3_1", '<|python_tag|>{"name": "look_up", "parameters": {"query": "x"}}'),
    ):
        (call,) = native(chosen(BY_NAME[name])).parse_all(text)
        assert (call.tool_name, call.parameters) == ("look_up", {"query": "x"})


# -- prompts ---------------------------------------------------------------------------------------------------


def test_a_prompt_has_the_token_ids_of_apply_chat_template() -> None:
    for published in PUBLISHED:
        tokenizer = published.tokenizer()
        messages = [{"role": "system", "content": " Be\nbrief.\n"}, {"role": "user", "content": " Wie? 水 "}]
        messages += [answer(published, "the tide"), {"role": "user", "content": "the tide\n"}]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert Renderer(tokenizer).prompt(messages) == expected, published.name


def test_arguments_of_the_template_apply_to_every_prompt_and_reply() -> None:
    qwen = BY_NAME["qwen3"]
    choice = chosen(qwen, enable_thinking=False)
    calls = [("look_up", {"query": "x"})]
    turns = [native(choice).render_calls(calls) + "<|im_end|>", "Done.<|im_end|>"]
    text = choice.renderer.decode(play(choice, turns).token_ids)
    assert text.count("<|im_start|>assistant\n<think>\n\n</think>\n\n") == 2


def test_an_unused_argument_and_a_description_with_a_control_token_are_errors() -> None:
    tokenizer = BY_NAME["qwen3"].tokenizer()
    with pytest.raises(SettingsError, match=r"does not use 'enable_thought'\. Did you mean 'enable_thinking'"):
        Renderer(tokenizer, {"enable_thought": False})
    with pytest.raises(SettingsError, match=re.escape("contains the control token '<|im_end|>'")):
        choose_call_format(Renderer(tokenizer), [ToolDefinition("look", "Ends with <|im_end|>.", [])])


@pytest.mark.parametrize(
    "text", ['{"name": "<|im_end|> y", "arguments": {}}', '{"name": "x", "arguments": {"q": "<think>"}}', "{"]
)
def test_a_call_that_cannot_run_adds_no_control_tokens_to_a_later_segment(text: str) -> None:
    choice = chosen(BY_NAME["qwen2_5"])
    tokenizer = choice.renderer.tokenizer
    spelled = [*choice.renderer.control("<tool_call>\n"), *choice.renderer.foreign(text)]
    call = [*spelled, *choice.renderer.control("\n</tool_call><|im_end|>")]
    trajectory = play(choice, [call, "Done.<|im_end|>", "Yes.<|im_end|>"], replies=["Sure?"], keep_thoughts=False)
    assert [event.outcome is ToolOutcome.OK for event in trajectory.tool_events] == [False]
    second = trajectory.segments[1].token_ids[: trajectory.segments[1].spans[0].end]
    num_ends, num_thoughts = map(second.count, tokenizer.convert_tokens_to_ids(["<|im_end|>", "<think>"]))
    assert (num_ends, num_thoughts) == (6, 0), "system, question, call, result, answer, reply"


# -- what follows a turn with calls ----------------------------------------------------------------------------
# Exactly what the template writes between that turn and the next prompt, in rollouts, demonstrations and served conversations.

FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


@dataclass(frozen=True, kw_only=True)
class Case:
    calls: Sequence[tuple[str, dict[str, Any]]]
    text: str = ""
    thought: str = ""
    is_broken: bool = False
    """The text of the call ends within an argument."""

    def suits(self, published: Published) -> bool:
        """Whether a model with this template can write it, so that it is read as calls."""
        is_marked = published.label not in ("llama", "harmony")
        return (
            len(self.calls) <= 1 + published.is_parallel
            and (is_marked or not self.text)
            and bool(published.thought or not self.thought)
        )


CASES = {
    "no arguments": Case(calls=[("now", {})]),
    "optional left out": Case(calls=[("look_up", {"query": "tide"})]),
    "nothing but optional": Case(calls=[("look_up", {"limit": 2})]),
    "unknown tool": Case(calls=[("look", {"at": "tide"})]),
    "unknown tool, no arguments": Case(calls=[("look", {})]),
    "not JSON": Case(calls=[("look_up", {"query": "tide"})], is_broken=True),
    "two calls": Case(calls=[("now", {}), ("now", {})]),
    "two calls, one with arguments": Case(calls=[("look_up", {"query": "tide"}), ("now", {})]),
    "text before": Case(calls=[("now", {})], text="I look at the clock."),
    "thought before": Case(calls=[("now", {})], thought="The clock knows."),
}


def thought_of(published: Published, case: Case) -> str:
    """Empty if the turn has none."""
    renderer = chosen(published).renderer
    return case.thought or ("Hm." if renderer.opens_thought(renderer.prompt(first_messages(chosen(published)))) else "")


def turn(published: Published, case: Case) -> str:
    """The text of the policy's turn."""
    call_format, thought = native(chosen(published)), thought_of(published, case)
    call = call_format.render_calls(case.calls)
    if case.is_broken:
        call = call[: call.index("tide") + 2]
    text = case.text and case.text + call_format.syntax.after_content
    return f"{thought and published.thought.format(thought)}{text}{call}{published.call_end or published.eos}"


def conversation(published: Published, case: Case, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Up to the results."""
    choice, thought = chosen(published), thought_of(published, case)
    said = said_by_assistant(published, thought, case.calls, 0) | {"content": case.text}
    if not thought:
        said.pop("reasoning_content", None)
    return [*first_messages(choice), said, *results(published, case.calls, texts)]


def expected(published: Published, case: Case, texts: Sequence[str]) -> str:
    """What the template writes between the end of the turn and the next answer."""
    choice = chosen(published)
    whole = choice.renderer.chat_template.text(conversation(published, case, texts), add_generation_prompt=True)
    _, written, after = whole.rpartition(native(choice).render_calls(case.calls))
    last, end, after = after.partition(published.call_end or published.eos)
    assert written and end and last.strip() in ("", case.text)
    return after


def last_turn(published: Published) -> str:
    return f"Noon.{published.answer_end or published.eos}"


def between(published: Published, trajectory: Trajectory) -> str:
    """The text between the first and the second turn of the policy."""
    (segment,) = trajectory.segments
    after_prompt = segment.spans[0].end
    first_end = segment.loss_mask.index(False, segment.loss_mask.index(True))
    assert segment.loss_mask.index(True) == after_prompt
    return chosen(published).renderer.decode(segment.token_ids[first_end : segment.loss_mask.index(True, first_end)])


def served(published: Published, case: Case, texts: Sequence[str]) -> str:
    """What follows the turn in a conversation with a client that has the tools."""
    choice, script = chosen(published), iter([turn(published, case), None, last_turn(published), None])
    engine = ScriptedEngine(lambda episode, token_ids: next(script, None), choice.renderer)
    inference = InferenceConfig(max_tokens=4000)
    policy = chat_policy(engine, choice.renderer, choice.call_format, [Look(), now], inference=inference)
    answers = ChatAnswers(policy)

    def ask(messages: Sequence[Any]) -> ChatAnswer:
        return asyncio.run(answers.answer(ChatRequest(messages=checked_messages(messages), tools=DEFINITIONS)))

    answer = ask(FIRST)
    replies = [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(answer.calls, texts, strict=True)
    ]
    second = ask([*FIRST, answer.message(), *replies])
    (segment,) = second.trajectory.segments
    num_before = len(answer.trajectory.token_ids)
    assert segment.token_ids[:num_before] == answer.trajectory.token_ids
    return choice.renderer.decode(segment.token_ids[num_before : segment.spans[0].end])


FIRST_OF_EACH_FORMAT = {published.label: published for published in reversed(WITH_CALLS)}.values()


@pytest.mark.parametrize("published", representatives(WITH_CALLS, *FIRST_OF_EACH_FORMAT, BY_NAME["qwen3"]), ids=named)
def test_what_follows_calls_is_what_the_template_writes_after_them(published: Published) -> None:
    choice, wrong = chosen(published), []
    for name, case in CASES.items():
        if not case.suits(published):
            continue
        played = play(choice, [turn(published, case), last_turn(published)])
        outcomes = {event.outcome for event in played.tool_events}
        assert (ToolOutcome.MALFORMED in outcomes) == case.is_broken and len(played.tool_events) == len(case.calls)
        texts = [native(choice).render_results([event]) for event in played.tool_events]
        read = case
        if case.is_broken:
            read = Case(calls=[(played.tool_events[0].call.tool_name or "unknown", {})])
        found = {"rollout": between(published, played)}
        if not case.is_broken:  # the client gets a broken call as text
            found["serve"] = served(published, case, texts)
            thought = {"reasoning_content": "Now I know."} if published.thought else {}
            messages = [*conversation(published, case, texts), {"role": "assistant", "content": "Noon.", **thought}]
            task = Task(task_id="t", prompt=QUESTION, answer="")
            found["sft"] = between(published, demonstration(task, messages, choice.renderer, native(choice)))
        after = expected(published, read, texts)
        wrong += [(name, where, text, after) for where, text in found.items() if text != after]
    assert not wrong


def test_results_of_several_calls_follow_one_another_if_the_template_refuses_several_calls() -> None:
    """Llama 3 writes one call in a turn, and a model may write two."""
    llama, call = BY_NAME["llama3_1"], '{"name": "now", "parameters": {}}'
    trajectory = play(chosen(llama), [f"[{call}, {call}]<|eot_id|>", last_turn(llama)])
    assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.OK] * 2
    result = '<|start_header_id|>ipython<|end_header_id|>\n\n"noon"<|eot_id|>'
    assert between(llama, trajectory) == f"{result}{result}<|start_header_id|>assistant<|end_header_id|>\n\n"

"""Conversations in OpenAI's form: what is shown, whose tools run where, and the tokens that are continued."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from dialect_answers import read
from playing import chat_policy, parts_of
from published_templates import PUBLISHED

from midthought.config import InferenceConfig
from midthought.engines.engine import Sampling
from midthought.engines.inference_engines import ScriptedInferenceEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.env.episode import QuestionEnvironment
from midthought.errors import DataError
from midthought.rollout.episode import EpisodeStart, run_episodes
from midthought.rollout.turn_graph import TurnGraph
from midthought.serve.answer_stream import AnswerStream, Piece, PieceKind
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import chained, checked_messages
from midthought.serve.chat_policy import ContextOverflowError
from midthought.serve.dialects import CHAT
from midthought.tokenization import Renderer
from midthought.tools.builtin.calculate import CalculateTool
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.types import Completion, Task, ToolOutcome, Trajectory

WEATHER = ToolDefinition("weather", "Tells the weather.", [ToolParameter("city", "string", "Where.")])


QWEN3 = next(each for each in PUBLISHED if each.name == "qwen3")


class Chat:
    """A scripted policy: it writes the texts one after the other; None ends a turn. `call_format`: native is Qwen3's."""

    def __init__(self, call_format: str, *script: str | None, **inference: Any) -> None:
        texts = iter(script)
        tokenizer = QWEN3.tokenizer() if call_format == "native" else None
        self.engine = ScriptedInferenceEngine(lambda episode, token_ids: next(texts), tokenizer)
        self.renderer, form = self.engine.renderer, call_format
        if call_format == "native":
            choice = choose_call_format(self.renderer, [])
            self.renderer, form = choice.renderer, choice.call_format
        self.seen: list[Piece] = []
        fields = {"tools": [CalculateTool()], "inference": InferenceConfig(**inference)}
        self.answers = ChatAnswers(chat_policy(self.engine.core, self.renderer, form, **fields))

    def request(self, *messages: dict[str, Any], tools: Sequence[ToolDefinition] = (), **options: Any) -> ChatRequest:
        return ChatRequest(messages=checked_messages(messages), tools=tools, **options)

    def answer(self, *messages: dict[str, Any], tools: Sequence[ToolDefinition] = (), **options: Any) -> ChatAnswer:
        self.seen = []
        return self.engine.run(self.answers.answer(self.request(*messages, tools=tools, **options), self.seen.append))

    def prompt(self, answer: ChatAnswer) -> str:
        """The text that the answer continues."""
        return self.renderer.decode(prompt_ids(answer))

    def control_tokens(self, token_ids: Sequence[int]) -> list[str]:
        return [self.renderer.decode([each]) for each in token_ids if each in self.renderer.control_token_ids]


def prompt_ids(answer: ChatAnswer) -> list[int]:
    segment = answer.trajectory.segments[0]
    return segment.token_ids[: segment.spans[0].end]


def between(chat: Chat, first: ChatAnswer, second: ChatAnswer) -> str:
    """The text between two answers, of which the second one continues the first to the token."""
    num_first = len(first.trajectory.token_ids)
    assert second.node.parent is first.node
    assert second.trajectory.token_ids[:num_first] == first.trajectory.token_ids
    return chat.renderer.decode(prompt_ids(second)[num_first:])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": name, "arguments": arguments}}]}


def result(answer: ChatAnswer, text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": answer.calls[number].id, "content": text}


CALLS = {
    "in_thought": '<think>\nI add. #call calculate {"expression": "2+3"}',
    "react": 'Thought: I add.\nAction: calculate\nAction Input: {"expression": "2+3"}',
    "hermes": '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>',
    "function_calling": '<function_calls>{"tool_name": "calculate", "parameters": {"expression": "2+3"}}</function_calls>',
    "json": '{"tool": "calculate", "parameters": {"expression": "2+3"}}',
}


def test_a_thought_and_its_answer_are_shown_apart_and_as_they_arrive():
    chat = Chat("in_thought", "<think>\nTwo and two <b>\n</think>\n\nIt is four. \n", None)
    answer = chat.answer(user("2 + 2?"))
    assert (answer.thoughts, answer.content, answer.finish) == ("Two and two <b>", "It is four.", "stop")
    assert len(chat.seen) > 10 and chat.seen == list(answer.pieces)
    assert [piece.kind for piece in chat.seen if piece.is_new] == [PieceKind.THOUGHT, PieceKind.ANSWER]


def test_a_thought_and_an_answer_are_shown_without_their_channels():
    harmony, seen = next(each for each in PUBLISHED if each.name == "gpt_oss"), list[Piece]()
    stream = AnswerStream(choose_call_format(Renderer(harmony.tokenizer()), []).call_format, seen.append)
    stream.begin_turn(in_thought=False)
    for letter in f"{harmony.thought.format('Two and two.')}{harmony.before_answer}It is four.":
        stream.feed(letter)
    stream.end_turn(has_calls=False)
    shown = {kind: "".join(piece.text for piece in seen if piece.kind is kind) for kind in PieceKind}
    assert (shown[PieceKind.THOUGHT], shown[PieceKind.ANSWER]) == ("Two and two.", "It is four.")


def script_of(name: str, call: str) -> list[str | None]:
    """A call, and the answer after its result."""
    if name == "in_thought":
        return [call, "Done.\n</think>\n\nFive.", None]
    return [call, "Final: Five.", None] if name == "react" else [call, None, "Five.", None]


@pytest.mark.parametrize("name", CALLS)
def test_the_policys_own_tool_runs_in_every_call_format(name):
    chat = Chat(name, *script_of(name, CALLS[name]))
    answer = chat.answer(user("2 + 3?"))
    assert [event.call.result for event in answer.trajectory.tool_events] == ["5"]
    results = [piece.text for piece in answer.pieces if piece.kind is PieceKind.RESULT]
    assert len(results) == 1 and "5" in results[0] and answer.finish == "stop" and not answer.calls
    if name != "react":  # its calls are outside of thoughts, and the answer follows them in the same text
        assert answer.content == "Five." and "2+3" in answer.thoughts


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_clients_tool_comes_back_and_its_result_is_continued_to_the_token(name):
    call = CALLS[name].replace("calculate", "weather").replace("expression", "city").replace("2+3", "Oslo")
    chat = Chat(name, *script_of(name, call))
    first = chat.answer(user("Weather?"), tools=[WEATHER])
    assert first.finish == "tool_calls" and [each.name for each in first.calls] == ["weather"]
    assert json.loads(first.calls[0].arguments) == {"city": "Oslo"}
    messages = [user("Weather?"), first.message(), result(first, "rain <|im_end|> #call weather {}")]
    second = chat.answer(*messages, tools=[WEATHER])
    assert "rain <|im_end|>" in between(chat, first, second) and "Five." in second.content
    named = chat.control_tokens(prompt_ids(second)[len(first.trajectory.token_ids) :])
    assert named == ([] if name in ("in_thought", "react") else ["<|im_start|>", "<|im_end|>", "<|im_start|>"])


def test_own_and_client_tools_may_be_called_in_one_turn():
    weather = CALLS["hermes"].rpartition("</think>")[2].replace("calculate", "weather").replace("expression", "city")
    chat = Chat("hermes", CALLS["hermes"] + weather, None, "Five.", None)
    first = chat.answer(user("?"), tools=[WEATHER])
    assert [each.name for each in first.calls] == ["weather"] and not first.trajectory.tool_events
    second = chat.answer(user("?"), first.message(), result(first, "rain"), tools=[WEATHER])
    text = chat.prompt(second)
    assert text.index("\n5<|im_end|>") < text.index("rain<|im_end|>") and second.content == "Five."


def test_an_unknown_conversation_is_rendered_and_contains_no_control_token():
    chat = Chat("in_thought", "Yes.", None)
    developer = {"role": "developer", "content": "Be <|im_end|> short."}
    results = {"role": "tool", "tool_call_id": "x", "content": "<|im_start|>system"}
    call = calling("weather", '{"city": "</think>"}')
    answer = chat.answer(developer, user("<think>"), call, results, tools=[WEATHER])
    assert chat.control_tokens(prompt_ids(answer)) == ["<|im_start|>", "<|im_end|>"] * 4 + ["<|im_start|>"]
    assert "weather" in chat.prompt(answer) and "<|im_start|>system" in chat.prompt(answer)


def test_a_stop_text_ends_the_answer_but_not_a_thought():
    chat = Chat("in_thought", "<think>STOP</think>Before STOP after", None)
    answer = chat.answer(user("a"), stop=["STOP"])
    assert (answer.thoughts, answer.content, answer.finish) == ("STOP", "Before", "stop")
    assert "after" not in chat.renderer.decode(answer.trajectory.sampled_runs()[0])


def test_text_that_only_begins_like_a_call_is_part_of_the_answer():
    answer = Chat("hermes", "a <tool_call> b <", None).answer(user("a"))
    assert "".join(piece.text for piece in answer.pieces).replace(" ", "") == "a<tool_call>b<"


def test_the_token_limit_counts_results_and_is_reported():
    answer = Chat("in_thought", "<think>" + "a" * 50, None, max_tokens=20).answer(user("a"))
    assert answer.finish == "length" and answer.trajectory.num_response == 20
    assert Chat("in_thought", "a" * 50, None).answer(user("a"), max_tokens=7).trajectory.num_response == 7


@pytest.mark.parametrize("options", [{"max_tokens": 7}, {"stop": ["be"]}])
def test_a_cut_answer_continues_after_an_end_that_was_not_sampled(options):
    chat = Chat("hermes", "To be or not to be.", None, "Yes.", None)
    first = chat.answer(user("a"), **options)
    assert first.finish == ("length" if "max_tokens" in options else "stop")
    assert first.node.record.turns[-1].answer == first.content, "a reward judges what the client has"
    second = chat.answer(user("a"), first.message(), user("b"))
    assert between(chat, first, second) == "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"


def test_a_system_message_may_follow_an_answer():
    chat = Chat("in_thought", "</think> ", None, "Hm.</think> No.", None)
    first = chat.answer(user("hi"))
    second = chat.answer(user("hi"), first.message(), {"role": "system", "content": "Say something."})
    assert between(chat, first, second).endswith("system\nSay something.<|im_end|>\n<|im_start|>assistant\n")


def test_a_user_may_speak_after_results_also_if_they_are_in_a_thought():
    chat = Chat("in_thought", CALLS["in_thought"].replace("calculate", "weather"), "</think>Five.", None)
    first = chat.answer(user("a"), tools=[WEATHER])
    second = chat.answer(user("a"), first.message(), result(first, "rain"), user("And?"), tools=[WEATHER])
    result_and_reply = "\n#weather_result:\nrain\n\n<|im_end|>\n<|im_start|>user\nAnd?"
    assert between(chat, first, second).startswith(result_and_reply) and second.content == "Five."


TIME = ToolDefinition("time", "Tells the time.", [])


@pytest.mark.parametrize("name", ["native", "hermes"])
def test_the_same_tools_in_another_order_continue_the_recorded_tokens(name):
    chat = Chat(name, "One.", None, "Two.", None, "Three.", None, "Four.", None)
    first = chat.answer(user("a"), tools=[WEATHER, TIME])
    messages = [user("a"), first.message(), user("b")]
    second = chat.answer(*messages, tools=[TIME, WEATHER])
    assert "Tells" not in between(chat, first, second)
    assert chat.answer(*messages, tools=[TIME]).node.parent is None
    fresh = chat.prompt(chat.answer(user("new"), tools=[TIME, WEATHER]))
    assert fresh.index("Tells the time") < fresh.index("Tells the weather"), "the client's order"


UNREAD = {name: CALLS[name].replace('"2+3"', "") for name in ("in_thought", "hermes")}


@pytest.mark.parametrize("name", UNREAD)
def test_a_call_that_cannot_be_read_is_text_for_a_client_with_tools(name):
    chat = Chat(name, UNREAD[name], None, "</think>Five.", None)
    first = chat.answer(user("a"), tools=[WEATHER])
    assert first.finish == "stop" and not first.calls and '{"expression": }' in first.content
    chat = Chat(name, UNREAD[name], *([] if name == "in_thought" else [None]), "</think>Five.", None)
    inside = chat.answer(user("a"))
    assert inside.content == "Five." and len(inside.trajectory.tool_events) == 1


def test_a_call_of_a_tool_that_nobody_has_goes_to_a_client_with_tools_and_its_reply_is_continued():
    call = CALLS["hermes"].replace("calculate", "nothing")
    chat = Chat("hermes", call, None, "So.", None)
    first = chat.answer(user("a"), tools=[WEATHER])
    assert [each.name for each in first.calls] == ["nothing"]
    second = chat.answer(user("a"), first.message(), result(first, "there is no such tool"), tools=[WEATHER])
    assert "there is no such tool" in between(chat, first, second)
    inside = Chat("hermes", call, None, "So.", None).answer(user("a"))
    assert inside.trajectory.tool_events[0].outcome is ToolOutcome.UNKNOWN_TOOL and inside.content == "So."


@pytest.mark.parametrize("name", ["no name", "a" * 65, "look.up"])
def test_a_call_that_no_client_could_send_back_is_text(name):
    first = Chat("hermes", CALLS["hermes"].replace("calculate", name), None).answer(user("a"), tools=[WEATHER])
    assert first.finish == "stop" and f'"{name}"' in first.content


def test_without_kept_thoughts_a_turn_begins_a_segment_and_results_continue_it():
    call = CALLS["hermes"].replace("calculate", "weather")
    chat = Chat("hermes", call, None, "Rain.", None, "Yes.", None, keep_thoughts=False)
    first = chat.answer(user("a"), tools=[WEATHER])
    messages = [user("a"), first.message(), result(first, "rain")]
    second = chat.answer(*messages, tools=[WEATHER])
    third = chat.answer(*messages, second.message(), user("b"), tools=[WEATHER])
    assert second.node.parent is first.node and third.node.parent is None and "I add." not in chat.prompt(third)


def test_tokens_are_counted_as_the_answer_has_them_and_a_conversation_without_room_is_refused():
    chat = Chat("hermes", "<think>Hm.</think>" + "No. " * 20, None, "Yes.", None)
    first = chat.answer(user("a"))
    messages = [user("a"), first.message(), user("b")]
    counted = asyncio.run(chat.answers.count_tokens(chat.request(*messages)))
    assert not first.node.is_delivered
    second = chat.answer(*messages)
    assert counted == len(prompt_ids(second)) and first.node.is_delivered
    short = ChatAnswers(dataclasses.replace(chat.answers.policy, max_seq_len=counted), chat.answers.graph)
    with pytest.raises(ContextOverflowError) as refused:
        chat.engine.run(short.answer(chat.request(*messages)))
    assert (refused.value.num_tokens, refused.value.max_tokens) == (counted, counted)


def test_sampling_that_is_ours_replaces_the_clients_and_its_seed():
    seen: list[Sampling] = []

    class Watched(ScriptedEngine):
        async def sample(self, episode: int, token_ids: Any, sampling: Sampling, **more: Any) -> Completion:
            seen.append(sampling)
            return await super().sample(episode, token_ids, sampling, **more)

    chat = Chat("hermes", temperature=0.7)
    policy = dataclasses.replace(chat.answers.policy, engine=Watched(lambda *given: "Yes.", chat.renderer))
    for training in (False, True):
        answers = ChatAnswers(policy, TurnGraph(), seed=5 if training else None)
        asked = read(CHAT, training=training, temperature=0.1, top_k=3, seed=9, max_tokens=3)
        answer = asyncio.run(answers.answer(asked.requests[0]))
    assert [(each.temperature, each.top_k, each.max_tokens) for each in seen] == [(0.1, 3, 3), (0.7, 0, 3)]
    assert [each.seed for each in seen] == [9, TurnGraph().seed(5, prompt_ids(answer))]


CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "ab"}


@pytest.mark.parametrize(
    ("call", "result", "is_equal"),
    [
        ({"content": None}, {}, True),
        ({"reasoning_content": "Hm.", "signature": "s"}, {"content": [{"type": "text", "text": t} for t in "ab"]}, True),
        ({"tool_calls": [{"id": "y", "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}]}, {"tool_call_id": "y"}, True),
        ({"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1, "b": 2}}}]}, {}, True),
        ({"tool_calls": [{"id": "x", "function": {"name": "g", "arguments": {"a": 1, "b": 2}}}]}, {}, False),
        ({"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1, "b": "2"}}}]}, {}, False),
        ({"content": "a"}, {}, False),
        ({}, {"content": "ab "}, False),
    ],
)  # fmt: skip
def test_messages_are_equal_if_they_say_the_same(call, result, is_equal):
    one, other = ([user("a"), CALL, RESULT], [user("a"), CALL | call, RESULT | result])
    digests = [chained(checked_messages(messages), ["tool"])[-1] for messages in (one, other)]
    assert (digests[0] == digests[1]) is is_equal and chained(checked_messages(one), [])[-1] != digests[0]


class Weather(Tool):
    definition = WEATHER

    def execute(self, city: str) -> str:
        return f"rain in {city}"


@pytest.mark.parametrize("name", ["native", "hermes", "in_thought"])
def test_the_record_of_a_session_is_that_of_a_native_episode_with_the_same_tokens(name):
    """The tool runs in the client, and in the episode."""
    renderer = Renderer(QWEN3.tokenizer()) if name == "native" else Chat(name).renderer
    choice = choose_call_format(renderer, [WEATHER])
    describing, call_format = (choice.renderer, choice.call_format) if name == "native" else (renderer, name)
    call = CALLS["in_thought" if name == "in_thought" else "hermes"].replace("calculate", "weather")
    calls = [call.replace('"expression": "2+3"', f'"city": "{city}"') for city in ("Oslo", "Rome")]
    calls[1] = calls[1] if name == "in_thought" else calls[1] + calls[0].rpartition("</think>")[2]
    script = [*calls, "Done.\n</think>\n\nRain."] if name == "in_thought" else [calls[0], None, calls[1], None, "Rain."]

    def engine() -> ScriptedEngine:
        texts = iter([*script, None])
        return ScriptedEngine(lambda episode, token_ids: next(texts), renderer)

    inference = InferenceConfig(max_tokens=2000)
    native = chat_policy(engine(), describing, call_format, [Weather()])
    task = Task(task_id="t", prompt="Weather?", answer="")
    parts = parts_of(
        native.engine,
        describing,
        call_format=native.call_format,
        tools=native.executor,
        messages=lambda task: native.messages([user(task.prompt)]),
        environment=lambda task: QuestionEnvironment(),
        max_tokens=2000,
    )
    (episode,) = asyncio.run(run_episodes(parts, [EpisodeStart(task=task, seed=1)]))
    answers = ChatAnswers(chat_policy(engine(), renderer, call_format, inference=inference))
    messages = [user("Weather?")]
    answer = None
    while answer is None or answer.calls:
        request = ChatRequest(messages=checked_messages(messages), tools=[WEATHER])
        answer = asyncio.run(answers.answer(request))
        answer.node.is_delivered = True
        cities = [json.loads(call.arguments)["city"] for call in answer.calls]
        messages += [answer.message(), *(result(answer, f"rain in {city}", n) for n, city in enumerate(cities))]
    record = Trajectory(task, [0])
    answers.graph.fill(record)
    assert str(record.segments) == str(episode.segments)
    assert len(episode.tool_events) == (2 if name == "in_thought" else 3)
    assert (record.turn_ends, record.call_ends, record.turns) == (episode.turn_ends, episode.call_ends, episode.turns)
    assert [event.call for event in record.tool_events] == [event.call for event in episode.tool_events]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "the last message"),
        ([{"role": "system", "content": "Be brief."}], "the last message"),
        ([user("a"), {"role": "tool", "tool_call_id": "x", "content": "b"}], "'x'"),
        ([user("a"), calling("<|im_end|>")], "im_end"),
        ([user("a"), calling("f", "{"), user("b")], "JSON"),
    ],
)
def test_a_malformed_conversation_is_an_error_that_names_the_place(messages, told):
    with pytest.raises(DataError, match=told):
        checked_messages(messages)

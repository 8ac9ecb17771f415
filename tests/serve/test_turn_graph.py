"""Turn graph: the segments of a session hold exactly what was sampled, whatever the client does to its conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from random_sessions import STYLES, play, policy_of

from midthought.errors import RecordError
from midthought.rollout import turn_graph
from midthought.rollout.turn_graph import TurnGraph, TurnNode
from midthought.serve import chat_answer, chat_messages
from midthought.types import Completion, Finish, SpanKind, Task, ToolCall, ToolEvent, ToolOutcome, Trajectory, Turn

NUM_TREES = 25
"""Of each style; `test_two_thousand_trees` has more."""


@pytest.mark.parametrize("style", STYLES)
def test_every_sampled_token_of_a_random_tree_is_trained_once_on_the_prompt_of_the_engine(style):
    sessions = [play(style, number) for number in range(NUM_TREES)]
    assert sum(session.num_continued for session in sessions) > NUM_TREES
    assert sum(session.num_edits for session in sessions) > NUM_TREES
    assert sum(session.is_ambiguous for session in sessions) < NUM_TREES / 4


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_two_thousand_trees(style):
    for number in range(NUM_TREES, 700):
        play(style, number)


# -- mutants: each must fail the property ------------------------------------------------------------------------


def aligned_again(original: Any, node: TurnNode) -> list[int]:
    renderer = policy_of("tagged").renderer
    return renderer.control(renderer.decode(original(node)))


def with_more(message: Any, more: Any) -> Any:
    return {**message, "content": f"{message['content']}{more}"}


def without_older_messages(original: Any, messages: Any, tools: Any) -> Any:
    digests = original((), tools)
    for message in messages:
        before = digests[-1] if message["role"] == "assistant" else digests[0]
        digests.append(chat_messages.next_digest(before, message))
    return digests


def trained_in_order_of_arrival(original: Any, leaves: Sequence[TurnNode]) -> dict[TurnNode, list[TurnNode]]:
    seen: set[TurnNode] = set()
    return {leaf: [node for node in leaf.path() if not (node in seen or seen.add(node))] for leaf in leaves}


MESSAGE: list[tuple[Any, str]] = [(chat_messages, "next_digest"), (chat_answer, "next_digest")]
TOOLS: list[tuple[Any, str]] = [(chat_answer, "chained")]
TRAINED: list[tuple[Any, str]] = [(turn_graph, "_trained_by")]
MUTANTS: dict[str, tuple[list[tuple[Any, str]], Any]] = {
    "tokens are aligned again": ([(TurnNode, "token_ids")], aligned_again),
    "only the first call counts": (MESSAGE, lambda f, _, m: f(_, {**m, "tool_calls": (m.get("tool_calls") or [])[:1]})),
    "ids count": (MESSAGE, lambda f, _, m: f(_, with_more(m, [call["id"] for call in m.get("tool_calls") or ()]))),
    "thoughts count": (MESSAGE, lambda f, _, m: f(_, with_more(m, m.get("reasoning_content")))),
    "tools do not count": (TOOLS, lambda f, messages, tools: f(messages, ())),
    "the order of tools counts": (TOOLS, lambda f, messages, tools: f(messages, [*map(str, enumerate(tools))])),
    "older messages do not count": (TOOLS, without_older_messages),
    "a shared answer in every path": (TRAINED, lambda f, leaves: {leaf: leaf.path() for leaf in leaves}),
    "a shared answer in the first path": (TRAINED, trained_in_order_of_arrival),
    "seeds in the order of requests": ([(TurnGraph, "seed")], lambda f, graph, seed, _: int(f(graph, seed, []))),
    "lost answers are trained": (
        [(TurnGraph, "add")], lambda f, graph, node: setattr(node, "is_delivered", True) or f(graph, node),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_the_property_finds_a_mutant(name, monkeypatch):
    places, mutant = MUTANTS[name]
    for where, what in places:
        original = getattr(where, what)
        monkeypatch.setattr(where, what, lambda *given, original=original: mutant(original, *given))
    with pytest.raises((AssertionError, RecordError)):
        for number in range(4 * NUM_TREES):
            play("tagged", number)


# -- the graph by hand -------------------------------------------------------------------------------------------


def answered(
    graph: TurnGraph,
    parent: TurnNode | None,
    context: Sequence[int],
    sampled: Sequence[int],
    *,
    is_delivered: bool = True,
    **fields: Any,
) -> TurnNode:
    """An answer of these tokens."""
    record = Trajectory(Task(task_id="chat", prompt="", answer=""), context)
    logprobs = tuple(-each / 10 for each in sampled)
    record.add_sampled(Completion(token_ids=tuple(sampled), sampled_logprobs=logprobs, finish=Finish.END))
    record.end_turn(Turn(model_output=str(sampled)))
    node = TurnNode(parent=parent, record=record, **fields)
    node.is_delivered = is_delivered
    graph.add(node)
    return node


def filled(graph: TurnGraph, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Tokens of each segment, and those that are trained."""
    trajectory = Trajectory(Task(task_id="t", prompt="", answer=""), [99])
    graph.fill(trajectory, **options)
    trajectory.check()
    return [
        (each.token_ids, [token for token, flag in zip(each.token_ids, each.loss_mask, strict=True) if flag])
        for each in trajectory.segments
    ]


def test_a_shared_answer_is_trained_in_the_longest_path_and_is_prompt_in_the_others():
    graph = TurnGraph()
    root = answered(graph, None, [1, 2], [3])
    answered(graph, root, [4], [5, 6, 7])
    answered(graph, root, [4], [5])
    assert filled(graph) == [([1, 2, 3, 4, 5, 6, 7], [3, 5, 6, 7]), ([1, 2, 3, 4, 5], [5])]
    answered(graph, answered(graph, root, [8], [9, 9, 9]), [10], [11])
    expected = [([1, 2, 3, 4, 5, 6, 7], [5, 6, 7]), ([1, 2, 3, 4, 5], [5])]
    assert filled(graph) == [*expected, ([1, 2, 3, 8, 9, 9, 9, 10, 11], [3, 9, 9, 9, 11])]


def test_an_answer_that_the_client_dropped_is_left_out_on_request():
    graph = TurnGraph()
    first = answered(graph, None, [1], [2])
    answered(graph, None, [1], [3])
    assert filled(graph, with_dropped=False) == [([1, 3], [3])]
    answered(graph, first, [4], [5])
    assert filled(graph, with_dropped=False) == [([1, 2, 4, 5], [2, 5])]
    assert filled(graph) == [([1, 3], [3]), ([1, 2, 4, 5], [2, 5])]


def test_what_was_not_delivered_is_no_part_of_the_record_and_nothing_leaves_it_as_it_is():
    graph = TurnGraph()
    answered(graph, None, [1], [2], is_delivered=False)
    assert filled(graph) == [([99], [])]
    answered(graph, None, [1], [3])
    assert filled(graph) == [([1, 3], [3])]


def test_results_are_tool_events_between_turns_and_rewards_are_those_of_the_answers():
    graph, trajectory = TurnGraph(), Trajectory(Task(task_id="t", prompt="", answer=""), [99])
    call = ToolCall(tool_name="look", success=True, result="so")
    event = ToolEvent(call=call, outcome=ToolOutcome.OK)
    first = answered(graph, None, [1], [2])
    second = answered(graph, first, [3], [4], answered=[event], observation="so")
    first.reward, second.reward = 0.5, 0.25
    other = answered(graph, None, [5], [6])
    assert graph.fill(trajectory) == [first, second, other]
    kinds = [SpanKind.PROMPT, SpanKind.SAMPLED, SpanKind.RESULT, SpanKind.SAMPLED]
    assert [span.kind for span in trajectory.segments[0].spans] == kinds
    assert trajectory.turn_ends == [(0, 1), (0, 3), (1, 1)] and trajectory.call_ends == [(0, 1)]
    assert trajectory.tool_events == [event]
    turns = trajectory.turns
    assert [(turn.turn_number, turn.reward, turn.observation, turn.done) for turn in turns] == [
        (1, 0.5, "so", False),
        (2, 0.25, None, False),
        (3, 0.0, None, True),
    ]
    assert turns[0].tool_call == call and not turns[1].tool_call


def test_a_conversation_is_forgotten_from_its_end_and_the_oldest_first():
    graph = TurnGraph(max_tokens=6)
    first = answered(graph, None, [1], [2], key=b"first")
    answered(graph, first, [3], [4], key=b"second")
    answered(graph, None, [5], [6], key=b"other")
    assert graph.find(b"second", set()) is not None
    answered(graph, None, [7], [8], key=b"new")
    assert graph.find(b"other", set()) is None
    answered(graph, None, [9], [10], key=b"newer")
    assert graph.find(b"second", set()) is None and graph.find(b"first", set()) is first
    answered(graph, None, [1] * 5, [2])
    assert graph.find(b"first", set()) is None
    answered(graph, first, [3], [4], key=b"second again")  # it was being sampled while its beginning was forgotten
    assert graph.find(b"first", set()) is first


def test_of_equal_answers_the_one_is_continued_whose_ids_the_client_has_and_else_the_newest():
    graph = TurnGraph()
    one, other = (answered(graph, None, [1], [n], key=b"a", ids=frozenset({f"id{n}"})) for n in (2, 3))
    assert graph.find(b"a", {"id2"}) is one and graph.find(b"a", {"id3"}) is other and graph.find(b"a", set()) is other
    below, below_other = (answered(graph, parent, [4], [5], key=b"b") for parent in (one, other))
    assert graph.find(b"b", {"id2"}) is below and graph.find(b"b", set()) is below_other
    answered(graph, None, [1], [4], key=b"a", is_delivered=False)
    assert graph.find(b"a", set()) is other, "the client cannot have the newest one"


def test_a_seed_depends_on_the_session_and_the_prompt_and_how_often_it_was_asked():
    graphs = TurnGraph(), TurnGraph()
    first = [graphs[0].seed(1, prompt) for prompt in ([1, 2], [1, 2], [3])]
    second = [graphs[1].seed(1, prompt) for prompt in ([3], [1, 2], [1, 2])]
    assert sorted(first) == sorted(second) and len(set(first)) == 3 and first[2] == second[0]
    assert TurnGraph().seed(2, [3]) != second[0]

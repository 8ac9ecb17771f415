"""Demonstrations: sound records, whose mask marks the policy's words, whose calls are calls, whose answers are right."""

import dataclasses
import random
import re
from collections import Counter

import pytest
from published_templates import PUBLISHED

from midthought.data.final_answers import NO_ANSWER
from midthought.env.answer_matching import normalised
from midthought.env.answers import task_is_right
from midthought.env.rewards import used_tool
from midthought.memory.questions import WORDINGS, QuestionPlan
from midthought.memory.tool import TOOL_NAME, format_hits
from midthought.recipes.podcast.demonstrations import (
    CALL_FORMAT,
    CLEAN,
    CUES,
    FOUND,
    IN_THE_NOTE,
    LOOK_UP,
    NOT_FOUND,
    SHARES_OF_MADE_MODELS,
    UNKNOWN,
    Demonstrator,
    Habits,
    corpus,
)
from midthought.recipes.podcast.settings import WarmupSection
from midthought.tokenization import Renderer
from midthought.types import SpanKind, Task, ToolOutcome

MIXED = Habits(ask_short=0.3, give_up=0.4, misread=0.2, needless_ask=0.5)
PLAN = QuestionPlan(1, needless_share=0.35, distractor_share=0.5, min_quote_words=8, max_quote_words=10)
ALL_NEED_MEMORY = dataclasses.replace(PLAN, needless_share=0.0)
VARIATIONS = [
    {"invented_share": names, "random_text_share": text} for names, text in ((0.0, 0.0), (0.8, 0.3), (0.0, 1.0))
]


@pytest.fixture(scope="module")
def make(chunks, renderer):
    def made(habits=MIXED, **changes):
        settings = WarmupSection(batch_tokens=1500)
        options = {"plan": PLAN, "num_results": 2, "max_result_tokens": 1000, **SHARES_OF_MADE_MODELS, **changes}
        return Demonstrator(chunks=chunks, renderer=renderer, settings=settings, habits=habits, **options)

    return made


@pytest.fixture(scope="module")
def answer_of(renderer):
    """Returns the text after a record's thought."""
    end = renderer.decode([renderer.tokenizer.eos_token_id])
    return lambda trajectory: own_words(trajectory, renderer)[-1].rpartition("</think>")[2].removesuffix(end).strip()


def write(demonstrator, number=150, seed=0):
    rng = random.Random(seed)
    return [demonstrator.write(rng) for _ in range(number)]


def own_words(trajectory, renderer) -> list[str]:
    return [renderer.decode(run) for run in trajectory.sampled_runs()]


def own_tasks(trajectories):
    return [each for each in trajectories if each.task.task_id.startswith("own")]


def test_a_demonstration_ends_as_the_chat_template_ends_an_answer(make):
    glm = Renderer(next(each for each in PUBLISHED if each.name == "glm_4_5").tokenizer())
    shown = write(dataclasses.replace(make(), renderer=glm), 5)
    assert {glm.decode(each.token_ids[-1:]) for each in shown} == {"<|user|>"}


@pytest.mark.parametrize("shares", VARIATIONS)
def test_a_demonstration_is_a_sound_record_whose_mask_calls_and_results_are_those_of_an_episode(make, renderer, shares):
    end, num_calls = renderer.decode([renderer.tokenizer.eos_token_id]), 0
    own = {renderer.tokenizer.eos_token_id, *renderer.control("</think>")}
    for trajectory in write(make(**shares)):
        trajectory.check()
        num_calls += trajectory.num_calls
        asked = [SpanKind.PROMPT, SpanKind.SAMPLED, SpanKind.RESULT, SpanKind.SAMPLED]
        assert [span.kind for span in trajectory.spans] == (asked if trajectory.num_calls else asked[:2])

        *thoughts, last = own_words(trajectory, renderer)  # the mask marks the call, the thought and the answer
        for event, thought in zip(trajectory.tool_events, thoughts, strict=True):
            assert thought == LOOK_UP + CALL_FORMAT.render_call(TOOL_NAME, event.call.parameters)
        thought, closed, answer = last.partition("</think>")
        assert closed and answer.startswith(" ") and answer.endswith(end) and answer.count(end) == 1
        cue = CUES[trajectory.task.labels["kind"]]
        assert any(thought.startswith(words + cue) for words in (IN_THE_NOTE, FOUND, NOT_FOUND))

        scanner = CALL_FORMAT.scanner(in_thought=True)  # a call is read back at its last token, with its parameters
        for run in trajectory.sampled_runs()[:-1]:
            stream = renderer.decode_stream()
            ended = [scanner.feed(stream.step(token_id)) for token_id in run]
            assert ended == [False] * (len(run) - 1) + [True]
            (action,) = scanner.take()
            assert action.success and action.tool_name == TOOL_NAME
            assert action.parameters == trajectory.tool_events[0].call.parameters
            scanner.resume()

        results = [
            span for span in trajectory.spans if span.kind is SpanKind.RESULT
        ]  # written as a rollout writes them
        for span, event in zip(results, trajectory.tool_events, strict=True):
            text = renderer.decode(trajectory.token_ids[span.start : span.end])
            assert text == CALL_FORMAT.render_results([event])
        for span in trajectory.spans[1:]:  # no foreign word is a control token
            controls = renderer.control_token_ids.intersection(trajectory.token_ids[span.start : span.end])
            assert controls <= (own if span.kind is SpanKind.SAMPLED else set())
    assert num_calls > 30


@pytest.mark.parametrize("shares", VARIATIONS)
def test_a_clean_demonstration_asks_exactly_where_it_must_and_answers_right(make, answer_of, shares):
    demonstrator = make(CLEAN, error_share=0.0, **shares)
    for trajectory in write(demonstrator):
        task = trajectory.task
        assert answer_of(trajectory) == task.answer
        assert task_is_right(task, task.answer) or not normalised(task.answer)
        assert trajectory.num_calls == task.labels["needs_memory"]
        for event in trajectory.tool_events:
            assert event.call.parameters == {"query": task.labels["quote"]}
            assert task.answer in event.call.result or task.answer in " ".join(event.call.result.split())


def test_habits_and_kinds_of_questions_come_up_in_the_shares_that_are_asked_for(make):
    def share(chosen, among):
        return sum(map(chosen, among)) / len(among)

    def is_exact(trajectory):
        return trajectory.tool_events[0].call.parameters["query"] == trajectory.task.labels["quote"]

    done = write(make(MIXED, **VARIATIONS[0]), 800)
    kinds = Counter(trajectory.task.labels["kind"] for trajectory in done)
    assert kinds.keys() == WORDINGS.keys() and min(kinds.values()) > 133
    needed = [t for t in done if t.task.labels["needs_memory"]]
    needless = [t for t in done if not t.task.labels["needs_memory"]]
    assert len(needed) / len(done) == pytest.approx(0.65, abs=0.06)
    assert share(lambda t: t.num_calls, needless) == pytest.approx(0.5, abs=0.1)
    for has_note, asking in ((True, 0.8), (False, 0.6)):
        own = [t for t in needed if t.task.prompt.startswith("Note: ") == has_note]
        assert share(lambda t: t.num_calls, own) == pytest.approx(asking, abs=0.1)
        exact = share(is_exact, [t for t in own if t.num_calls])
        assert exact == pytest.approx((asking - MIXED.ask_short) / asking, abs=0.1)


def test_the_right_result_stands_now_here_now_there_among_as_many_as_the_tool_gives(make, chunks):
    demonstrator = make(CLEAN, **VARIATIONS[0], num_results=3, error_share=0.0, plan=ALL_NEED_MEMORY)
    lines = {format_hits([chunk]).removeprefix("[1] "): chunk.chunk_id for chunk in chunks}
    places = Counter()
    for trajectory in write(demonstrator, 60):
        shown = [lines[line[4:]] for line in trajectory.tool_events[0].call.result.splitlines()]
        assert len(shown) == 3
        places[shown.index(trajectory.task.evidence[0])] += 1
    assert set(places) == {0, 1, 2}


def test_a_batch_is_a_function_of_the_seed_and_the_step_alone(make):
    def tokens(demonstrator, step):
        return [trajectory.token_ids for trajectory in demonstrator.of_step(step)]

    used = make()
    first = tokens(used, 7)
    used.of_step(8)
    assert tokens(used, 7) == tokens(make(), 7) == first
    assert tokens(used, 8) != first and tokens(make(seed=1), 7) != first


def test_the_prompt_is_the_one_that_an_episode_of_the_same_task_begins_with(make, renderer):
    for trajectory in write(make(instruction="Think, then answer."), 5):
        prompt = trajectory.token_ids[: trajectory.spans[0].end]
        assert prompt == renderer.prompt(trajectory.task.messages("Think, then answer."))
        assert "Think, then answer." in renderer.decode(prompt)


def test_without_a_template_that_opens_the_thought_the_policy_opens_it(make, renderer, monkeypatch):
    monkeypatch.setattr(renderer, "opens_thought", lambda prompt_ids: False)
    for trajectory in write(make(), 10):
        assert own_words(trajectory, renderer)[0].startswith("<think>\n")
        trajectory.check()


def test_half_of_the_demonstrations_are_about_the_users_own_questions(make, chunks, answer_of):
    chunk = chunks[0]
    asked = {
        "own:who": ("Who speaks of it?", chunk.speaker),
        "own:where": (f"Where does {chunk.speaker} say so?", chunk.episode),
        "own:other": ("What is it?", "a clock"),
    }
    own = [(Task(task_id=name, prompt=prompt, answer=answer), chunk) for name, (prompt, answer) in asked.items()]
    shown = own_tasks(write(make(CLEAN, plan=ALL_NEED_MEMORY, own=own)))
    assert 50 < len(shown) < 100 and {each.task.task_id for each in shown} == {"own:who", "own:where"}
    assert len({each.task.answer for each in shown}) > 20  # invented names: the answer must be copied
    for each in shown:
        [event] = each.tool_events
        assert event.call.parameters == {"query": each.task.prompt}
        if event.outcome is ToolOutcome.OK:
            assert each.task.answer in (event.call.result or "")
            assert task_is_right(each.task, answer_of(each))


def test_a_question_without_an_answer_is_shown_with_a_search_a_refusal_and_invented_names(
    make, chunks, renderer, answer_of
):
    chunk, names = chunks[0], {chunk.speaker: "speaker" for chunk in chunks} | {"Glass Bells": "episode"}
    other = next(name for name in names if name != chunk.speaker)
    said = f"Where does {chunk.speaker} say so?"
    asked = {"own:who": 'Who says so in "Glass Bells"?', "own:where": f"Where does {other} say so?", "own:said": said}
    answers = {"own:said": chunk.episode}
    own = [(Task(task_id=name, prompt=asked[name], answer=answers.get(name, NO_ANSWER)), chunk) for name in asked]
    options = {"plan": ALL_NEED_MEMORY, "own": own, "names": names, "error_share": 0.0}
    shown = own_tasks(write(make(CLEAN, **options)))
    assert {each.task.task_id for each in shown} == set(asked)
    for each in shown:
        [event], last = each.tool_events, own_words(each, renderer)[-1]
        named = re.match(r"Asked about (.+), found (.+)\.\n", last)
        assert named and named[1] in each.task.prompt and named[2] in event.call.result
        if each.task.task_id == "own:said":
            assert named[1] == named[2]
        else:
            assert used_tool(each) and answer_of(each) == NO_ANSWER and named[1] not in event.call.result
            assert last[named.end() :].startswith(NOT_FOUND)
    for name, prompt in asked.items():
        prompts = Counter(each.task.prompt for each in shown if each.task.task_id == name)
        assert len(prompts) > 10 and prompts[prompt] < 0.5 * prompts.total()
    real = make(CLEAN, invented_share=0.0, **options)
    assert {each.task.prompt for each in own_tasks(write(real))} == set(asked.values())


def test_a_long_result_is_cut_as_in_an_episode_and_an_answer_that_it_does_not_show_is_not_given(
    make, renderer, answer_of
):
    demonstrator = make(CLEAN, plan=ALL_NEED_MEMORY, num_results=3, max_result_tokens=60, error_share=0.0)
    answers = Counter()
    for each in write(demonstrator):
        answer, [event] = answer_of(each), each.tool_events
        assert len(renderer.foreign(event.call.result)) <= 60
        is_shown = " ".join(each.task.answer.split()) in " ".join(event.call.result.split())
        assert (answer == each.task.answer) == is_shown and (is_shown or answer == UNKNOWN)
        answers[is_shown] += 1
    assert min(answers.values()) > 20


def test_where_the_memory_fails_the_demonstration_says_that_it_does_not_know(make, renderer):
    for trajectory in write(make(CLEAN, error_share=1.0, plan=ALL_NEED_MEMORY), 20):
        assert [event.outcome for event in trajectory.tool_events] == [ToolOutcome.RAISED]
        last = own_words(trajectory, renderer)[-1]
        assert last.startswith(NOT_FOUND) and UNKNOWN in last


def test_the_corpus_has_the_refusal_if_a_question_has_no_answer(chunks):
    plain, with_refusal = (corpus(chunks, random.Random(1), may_abstain=each) for each in (False, True))
    assert not any(NO_ANSWER in text for text in plain) and any(NO_ANSWER in text for text in with_refusal)

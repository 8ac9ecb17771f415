"""Stateful tools: every episode has its own object."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest
from calling import TASK, results, run
from calling import call as tool_call

from midthought.tools.definition import Tool, ToolDefinition, ToolEpisode, ToolParameter
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import ParsedAction, Task, ToolOutcome

DEFINITION = ToolDefinition("note", "Keeps notes.", [ToolParameter("word", "string", "What to add.")])


def call(word: str, name: str = "note") -> ParsedAction:
    return tool_call(name, word=word)


class Notes(Tool):
    """Keeps the words of one episode; slow enough that two calls at once would lose one."""

    definition = DEFINITION

    def __init__(self, episode: ToolEpisode | None = None, log: Counter[str] | None = None) -> None:
        self.episode = episode
        self.words: list[str] = []
        self.log = Counter[str]() if log is None else log

    def open(self, episode: ToolEpisode) -> Any:
        self.log["opened"] += 1
        return type(self)(episode, self.log)

    def execute(self, word: str) -> Any:
        words = [*self.words, word]
        time.sleep(0.001)
        return self.keep(words)

    def keep(self, words: list[str]) -> str:
        self.words = words
        assert self.episode is not None
        return f"{self.episode.task.task_id}: {' '.join(words)}"

    def close(self) -> Any:
        self.log["closed"] += 1
        self.log[f"closed with {len(self.words)}"] += 1


class AsyncNotes(Notes):
    async def open(self, episode: ToolEpisode) -> Any:
        await asyncio.sleep(0)
        return Notes.open(self, episode)

    async def execute(self, word: str) -> Any:
        words = [*self.words, word]
        await asyncio.sleep(0.001)
        return self.keep(words)

    async def close(self) -> Any:
        await asyncio.sleep(0)
        Notes.close(self)


@pytest.mark.parametrize("kind", [Notes, AsyncNotes])
def test_64_concurrent_episodes_each_see_their_own_state_and_calls_of_one_run_in_order(kind: type[Notes]) -> None:
    tool = kind()
    box = ToolExecutor(ToolRegistry([tool]))

    async def episode(number: int) -> None:
        task = Task(task_id=f"t{number}", prompt="Who?", answer="Ada")
        tools = box.for_episode(ToolEpisode(task=task, seed=number))
        first = await box.run([call(word) for word in "abc"], task, tools=tools)
        second = await box.run([call("d")], task, tools=tools)
        await tools.close()
        assert results([*first, *second]) == [f"t{number}: {words}" for words in ("a", "a b", "a b c", "a b c d")]

    async def episodes() -> None:
        await asyncio.gather(*map(episode, range(64)))

    asyncio.run(episodes())
    assert tool.log == {"opened": 64, "closed": 64, "closed with 4": 64}
    assert tool.words == []


def test_the_tool_of_a_task_is_the_one_that_is_opened() -> None:
    class OfTask(Notes):
        shelf = "all"

        def for_task(self, task: Task) -> Tool:
            found = OfTask(log=self.log)
            found.shelf = task.prompt
            return found

        def open(self, episode: ToolEpisode) -> Any:
            opened = super().open(episode)
            opened.shelf = self.shelf
            return opened

        def execute(self, word: str) -> Any:
            self.words.append(word)
            return f"{self.shelf}: {' '.join(self.words)}"

    box = ToolExecutor(ToolRegistry([OfTask()]))
    assert results(run(box, call("a"), call("b"))) == ["Who?: a", "Who?: a b"]


def test_a_tool_without_open_that_becomes_a_stateful_one_is_refused() -> None:
    class Proxy(Tool):
        definition = Notes.definition

        def for_task(self, task: Task) -> Tool:
            return Notes()

        def execute(self, word: str) -> str:
            return word

    (event,) = run(ToolExecutor(ToolRegistry([Proxy()])), call("a"))
    assert event.outcome is ToolOutcome.RAISED
    assert event.call.result == "Proxy.for_task returned a stateful tool; override open in Proxy, too"


def test_what_open_raises_is_told_to_the_model_and_the_next_call_opens_again() -> None:
    class Late(Notes):
        def open(self, episode: ToolEpisode) -> Any:
            if not self.log["refused"]:
                self.log["refused"] += 1
                raise ValueError("no room yet")
            return super().open(episode)

    class Nothing(Notes):
        definition = ToolDefinition("nothing", "Opens nothing.", DEFINITION.parameters)

        def open(self, episode: ToolEpisode) -> Any:
            return None

    box = ToolExecutor(ToolRegistry([Late(), Nothing()]))
    events = run(box, call("a"), call("b"), call("c", "nothing"))  # an episode of their own
    assert [event.outcome for event in events] == [ToolOutcome.RAISED, ToolOutcome.OK, ToolOutcome.RAISED]
    assert results(events) == ["no room yet", "t: b", "open returned a NoneType; return the tool for the episode"]


def test_an_open_that_takes_longer_than_the_call_is_waited_for_by_the_next_one_and_closed_in_the_end() -> None:
    class Slow(Notes):
        timeout_seconds = 0.15

        def open(self, episode: ToolEpisode) -> Any:
            time.sleep(0.2)
            return super().open(episode)

    tool = Slow()
    events = run(ToolExecutor(ToolRegistry([tool])), call("a"), call("b"))
    assert [event.outcome for event in events] == [ToolOutcome.TIMED_OUT, ToolOutcome.OK]
    assert tool.log == {"opened": 1, "closed": 1, "closed with 1": 1}


def test_closing_waits_for_an_open_in_progress_and_for_the_close_of_what_it_opened() -> None:
    is_opening, may_open = threading.Event(), threading.Event()

    class Slow(Notes):
        def open(self, episode: ToolEpisode) -> Any:
            is_opening.set()
            may_open.wait(60)
            return super().open(episode)

    tool = Slow()

    async def episode() -> None:
        box = ToolExecutor(ToolRegistry([tool]), timeout_seconds=60)
        tools = box.for_episode(ToolEpisode(task=TASK))
        running = asyncio.ensure_future(box.run([call("a")], TASK, tools=tools))
        await asyncio.to_thread(is_opening.wait, 60)
        running.cancel()
        closing = asyncio.ensure_future(tools.close())
        for _ in range(1000):  # far more steps of the event loop than a close that does not wait takes
            await asyncio.sleep(0)
        assert not closing.done()
        may_open.set()
        await closing
        assert tool.log == {"opened": 1, "closed": 1, "closed with 0": 1}

    asyncio.run(episode())


def test_a_cancelled_call_does_not_keep_the_tool_from_being_closed() -> None:
    class Hanging(AsyncNotes):
        async def execute(self, word: str) -> str:
            await asyncio.Event().wait()
            return ""

    tool = Hanging()

    async def episode() -> None:
        box = ToolExecutor(ToolRegistry([tool]))
        running = asyncio.ensure_future(box.run([call("a"), call("b")], TASK))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert tool.log["closed"] == 1

    asyncio.run(episode())


def test_a_close_that_raises_or_hangs_is_logged_and_ends_nothing(caplog: Any) -> None:
    class Raising(Notes):
        def close(self) -> Any:
            raise OSError("the disk is full")

    class Hanging(AsyncNotes):
        definition = ToolDefinition("hang", "Hangs.", DEFINITION.parameters)

        async def close(self) -> Any:
            await asyncio.Event().wait()

    caplog.set_level(logging.WARNING)
    box = ToolExecutor(ToolRegistry([Raising(), Hanging()]), timeout_seconds=0.1)
    events = run(box, call("a"), call("a", "hang"))
    assert [event.outcome for event in events] == [ToolOutcome.OK] * 2
    assert "tool 'note': close raised OSError: the disk is full" in caplog.text
    assert "tool 'hang': close was not done within 0.1 seconds" in caplog.text

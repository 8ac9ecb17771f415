"""Demonstrations for the warm-up: how a thought looks, how the memory is asked, how its answer is read. Written by rule.

They teach skills (quote exactly, copy any name) and show mixed habits (calls that are not needed, none where one is,
short queries, giving up), so that the choice among them is left to reinforcement learning.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from midthought.memory.chunks import Chunk
from midthought.memory.questions import WORDINGS, QuestionPlan, as_task, quote_and_answer
from midthought.memory.tool import TOOL_NAME, format_chunk, format_hits
from midthought.recipes.podcast.synthetic_names import SyntheticNames
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.types import Task, ToolCall, ToolEvent, ToolOutcome, Trajectory

LOOK_UP, IN_THE_NOTE, FOUND, NOT_FOUND = "I look it up.\n", "The note has the", "It names the", "Nothing names the"
CUES = {"speaker": " speaker", "episode": " episode", "continuation": " words"}
"""The last word of a thought says what will be answered, in the words of question and result."""
NUM_CUE_WORDS = 2
"""Words of the quote's end that a thought about its continuation ends with."""
UNKNOWN = "I do not know."

NUM_FORM_COPIES = 60
"""How often the fixed wordings stand in the tokenizer's corpus: often enough to become few tokens."""


class Habit(enum.StrEnum):
    """What a demonstration does. For a question that needs the memory: ASK, ASK_SHORT, GO_WITHOUT; else READ, ASK."""

    ASK = "ask"
    """Quote exactly in the query, answer from the result."""
    ASK_SHORT = "ask_short"
    """Query with the quote's first words only, answer from whatever comes back."""
    GO_WITHOUT = "go_without"
    """Answer without asking: from a note that does not help, or that one does not know."""
    READ = "read"
    """Answer from the note in the prompt."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Shares of each habit. `CLEAN` is what the control arm is taught."""

    ask_short: float
    """Of the questions that need the memory."""
    give_up: float
    """Of those of them that have no note."""
    misread: float
    """Of those of them that have a note, which does not help."""
    needless_ask: float
    """Of the questions whose note holds the answer."""


CLEAN = Habits(ask_short=0.0, give_up=0.0, misread=0.0, needless_ask=0.0)


class Demonstrator:
    """Writes demonstrations from the training episodes' chunks, as Trajectories whose mask marks the policy's words."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        renderer: Renderer,
        call_format: InThoughtFormat,
        plan: QuestionPlan,
        *,
        habits: Habits,
        made_up_share: float,
        random_text_share: float,
        num_results: int,
        instruction: str = "",
        error_share: float = 0.03,
    ) -> None:
        self._instruction = instruction
        self._chunks = [chunk for chunk in chunks if len(chunk.transcript.split()) >= plan.min_quote_words]
        self._renderer, self._call_format, self._plan, self._habits = renderer, call_format, plan, habits
        self._made_up = SyntheticNames([chunk.transcript for chunk in chunks], renderer)
        self._made_up_share, self._random_text_share = made_up_share, random_text_share
        self._num_results, self._error_share = num_results, error_share

    def write(self, rng: random.Random) -> Trajectory:
        """One demonstration, drawn with `rng` alone."""
        question = None
        while question is None:
            kind = rng.choice(self._plan.kinds)
            chunk = self._varied(rng.choice(self._chunks), rng)
            question = quote_and_answer(chunk, kind, self._plan, rng)
        needs_memory = rng.random() >= self._plan.needless_share
        other = self._varied(rng.choice(self._chunks), rng)
        note = other if needs_memory and rng.random() < self._plan.distractor_share else None
        task = as_task(chunk, kind, *question, note=note if needs_memory else chunk, needs_memory=needs_memory)
        return self._play(task, self._habit(needs_memory, note is not None, rng), chunk, note, rng)

    def batch(self, seed: int, step: int, num_tokens: int) -> list[Trajectory]:
        """Demonstrations of about `num_tokens` tokens together; a function of seed and step alone."""
        rng = random.Random(f"demonstrations-{seed}-{step}")
        written: list[Trajectory] = []
        while sum(len(demonstration.token_ids) for demonstration in written) < num_tokens:
            written.append(self.write(rng))
        return written

    def _habit(self, needs_memory: bool, has_note: bool, rng: random.Random) -> Habit:
        draw = rng.random()
        if not needs_memory:
            return Habit.ASK if draw < self._habits.needless_ask else Habit.READ
        go_without = self._habits.misread if has_note else self._habits.give_up
        if draw < go_without:
            return Habit.GO_WITHOUT
        return Habit.ASK_SHORT if draw < go_without + self._habits.ask_short else Habit.ASK

    def _play(self, task: Task, habit: Habit, chunk: Chunk, note: Chunk | None, rng: random.Random) -> Trajectory:
        prompt_ids = self._renderer.prompt(task.messages(self._instruction))
        trajectory = Trajectory(task, prompt_ids)
        if not self._renderer.opens_thought(prompt_ids):
            trajectory.add_demonstrated(self._renderer.control(f"{self._call_format.think_open}\n"))
        if habit is Habit.READ:
            self._answer(trajectory, IN_THE_NOTE, task.answer)
        elif habit is Habit.GO_WITHOUT:
            self._answer(trajectory, IN_THE_NOTE if note else NOT_FOUND, self._misled(note, task) if note else UNKNOWN)
        else:
            self._ask(trajectory, habit, chunk, rng)
        return trajectory

    def _ask(self, trajectory: Trajectory, habit: Habit, chunk: Chunk, rng: random.Random) -> None:
        task = trajectory.task
        query = str(task.labels["quote"])
        found = [chunk]
        if habit is Habit.ASK_SHORT:
            query = " ".join(query.split()[: rng.randint(1, 2)])
            found = found if rng.random() < 0.2 else []
        while len(found) < self._num_results:
            found.insert(rng.randint(0, len(found)), self._varied(rng.choice(self._chunks), rng))
        words = LOOK_UP + self._call_format.render_call(TOOL_NAME, {"query": query})
        trajectory.add_demonstrated(self._renderer.foreign(words))
        failed = rng.random() < self._error_share
        text = "the memory does not answer" if failed else format_hits(found)
        call = ToolCall(tool_name=TOOL_NAME, parameters={"query": query}, success=not failed, result=text)
        event = ToolEvent(call=call, outcome=ToolOutcome.RAISED if failed else ToolOutcome.OK)
        trajectory.add_results([event], self._renderer.foreign(self._call_format.render_results([event])))
        if failed or (chunk not in found and task.labels["kind"] == "continuation"):
            self._answer(trajectory, NOT_FOUND, UNKNOWN)
        else:
            self._answer(trajectory, FOUND, task.answer if chunk in found else self._misled(found[0], task))

    def _misled(self, chunk: Chunk, task: Task) -> str:
        """What a chunk that does not hold the quote gives as the answer."""
        answers = {"speaker": chunk.speaker, "episode": chunk.episode}
        return answers.get(str(task.labels["kind"]), " ".join(chunk.transcript.split()[:3]))

    def _answer(self, trajectory: Trajectory, last_thought: str, answer: str) -> None:
        labels = trajectory.task.labels
        cue = CUES[str(labels["kind"])]
        if labels["kind"] == "continuation" and last_thought != NOT_FOUND:
            cue = f"{cue} after {' '.join(str(labels['quote']).split()[-NUM_CUE_WORDS:])}"
        thought = self._renderer.foreign(f"{last_thought}{cue}")
        close = self._renderer.control(self._call_format.think_close)
        end = self._renderer.tokenizer.eos_token_id
        trajectory.add_demonstrated([*thought, *close, *self._renderer.foreign(f" {answer}"), end])

    def _varied(self, chunk: Chunk, rng: random.Random) -> Chunk:
        """The chunk with made-up names (so that copying, not remembering, answers), or with random words altogether."""
        if rng.random() < self._random_text_share:
            return replace(
                chunk,
                speaker=self._made_up.tokens(rng, 2, 6),
                episode=self._made_up.tokens(rng, 2, 6),
                transcript=self._made_up.words(rng, rng.randint(13, 18)),
            )
        if rng.random() < self._made_up_share:
            chunk = replace(chunk, speaker=self._made_up.name(rng))
        if rng.random() < self._made_up_share:
            chunk = replace(chunk, episode=self._made_up.title(rng))
        return chunk


def corpus(chunks: Sequence[Chunk], rng: random.Random) -> list[str]:
    """Texts from which the small model's tokenizer is made: what prompts, calls and results look like."""
    texts = [f" {chunk.speaker} {chunk.episode} {chunk.transcript}" for chunk in chunks]
    made_up = SyntheticNames([chunk.transcript for chunk in chunks], None)
    line = format_chunk(Chunk("", "", "", "", "", "00:12:34", 0))
    names = [f" {made_up.name(rng)} {made_up.title(rng)}" for _ in range(1500)]
    call = InThoughtFormat().render_call(TOOL_NAME, {"query": "x"})
    forms = [f"Note: {line}", LOOK_UP + call, UNKNOWN, f"\n#{TOOL_NAME}_result:\n[1] {line}\n\n", *WORDINGS.values()]
    forms += [words + cue for words in (IN_THE_NOTE, FOUND, NOT_FOUND) for cue in CUES.values()]
    return texts + names + forms * NUM_FORM_COPIES

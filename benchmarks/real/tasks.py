"""What a pretrained model learns here: problems, tools, rewards and demonstrations, as a user would write them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from importlib import resources
from typing import Any, Literal

from midthought import BaseEnvironment, Task, Trajectory, tool

Messages = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class RealTask:
    """A task: the trainer's arguments and the demonstrations, both from a seed, and how much is trained."""

    arguments: Callable[[int, int], dict[str, Any]]
    """Returns `Trainer` arguments for a seed and a number of held-out tasks."""
    demonstrations: Callable[[int], Any]
    """Returns what `Trainer.sft` learns from."""
    score: str = "exact_match"
    """The metric of `Trainer.evaluate` that counts."""
    num_sft_steps: int
    sft_tokens: int
    settings: Mapping[str, Any]
    """Settings of the reinforcement learning."""
    tools: tuple[Literal["off", "shuffled"], ...] = ()
    """Evaluations without the tools' results: `off`, `shuffled`."""
    arms: Mapping[str, Callable[[int], Any] | None] = field(default_factory=dict)
    """Other ways to train, by name: on these demonstrations alone; None: rejection-sampling fine-tuning of the same policy."""


# -- multiply: the README's program ------------------------------------------------------------------------------------

FORMS = (
    "A box has {a} pens. How many pens do {b} boxes have?",
    "What is {a} times {b}?",
    "Tickets cost {a} dollars each. How much do {b} tickets cost?",
    "A train covers {a} km per hour. How far does it get in {b} hours?",
    "There are {a} rows with {b} seats each. How many seats are there?",
    "{b} workers each pack {a} parcels. How many parcels is that?",
)
GUESS_ERRORS = (-10, 10, 100, -100, 1)
NUM_PROBLEMS = 2000


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies two whole numbers."""
    return a * b


def word_problems(seed: int, count: int) -> list[dict[str, str]]:
    """Returns different problems, each the product of a number up to 999 and one up to 99."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        a, b = draw.randint(12, 999), draw.randint(12, 99)
        found[draw.choice(FORMS).format(a=a, b=b)] = str(a * b)
    return [{"question": question, "answer": answer} for question, answer in found.items()]


def multiplication(seed: int, num_held_out: int) -> dict[str, Any]:
    problems = word_problems(seed, NUM_PROBLEMS + num_held_out)
    return {
        "dataset": problems[num_held_out:],
        "validation": problems[:num_held_out],
        "tools": [multiply],
        "rewards": ["correct"],
    }


def calls_and_guesses(seed: int, share_of_calls: float = 0.5) -> Callable[[Task], Messages]:
    """Demonstrations of which this share calls the tool; the others guess a number near the answer."""

    def shown(task: Task) -> Messages:
        draw = random.Random(f"{seed} {task.prompt}")
        if draw.random() >= share_of_calls:
            return [said(f"I think the answer is {int(task.answer) + draw.choice(GUESS_ERRORS)}.")]
        a, b = map(int, re.findall(r"\d+", task.prompt))
        call = {"function": {"name": "multiply", "arguments": {"a": a, "b": b}}}
        return [
            said("I multiply.") | {"tool_calls": [call]},
            {"role": "tool", "content": task.answer},
            said(f"The answer is {task.answer}."),
        ]

    return shown


def calls_only(seed: int) -> Callable[[Task], Messages]:
    return calls_and_guesses(seed, share_of_calls=1.0)


def said(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": words}


# -- reverse_text: no tool ---------------------------------------------------------------------------------------------

NUM_TEXTS = 1000
WORDS_OF_A_TEXT = (3, 6)


def texts(seed: int, count: int) -> Iterator[str]:
    """Yields a few words in a row from the sample transcripts, each text once."""
    folder = resources.files("midthought.recipes.podcast") / "sample"
    words = " ".join(each.read_text("utf-8") for each in sorted(folder.iterdir(), key=str) if each.is_file())
    plain = re.findall(r"[a-z']+", words.lower())
    draw, known = random.Random(seed), set[str]()
    while len(known) < count:
        start, length = draw.randrange(len(plain) - WORDS_OF_A_TEXT[1]), draw.randint(*WORDS_OF_A_TEXT)
        text = " ".join(plain[start : start + length])
        if text not in known:
            known.add(text)
            yield text


def similarity(trajectory: Trajectory) -> float:
    """How alike the answer and the reversed text are (difflib's ratio, 0 to 1)."""
    return SequenceMatcher(None, trajectory.turns[-1].answer or "", trajectory.task.answer).ratio()


def reversal(seed: int, num_held_out: int) -> dict[str, Any]:
    rows = [
        {"question": f"Reverse the text character by character: {text}", "answer": text[::-1]}
        for text in texts(seed, NUM_TEXTS + num_held_out)
    ]
    return {"dataset": rows[num_held_out:], "validation": rows[:num_held_out], "rewards": [similarity]}


def reversed_texts(seed: int) -> Callable[[Task], Messages]:
    return lambda task: [said(task.answer)]


# -- guess_the_number: several turns -----------------------------------------------------------------------------------

LARGEST = 32
MAX_GUESSES = 6


class GuessTheNumber(BaseEnvironment):
    """The policy guesses a number from 1 to `LARGEST`. The first guess pays 1 if it is right, every further one 0.1 less."""

    def reset(self, seed: int = 0) -> str:
        self._number = random.Random(f"number {seed}").randint(1, LARGEST)
        self._num_guesses = 0
        return start_of_game()

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._num_guesses += 1
        reply = reply_to(action, self._number)
        is_right = reply == RIGHT
        reward = 1.0 - 0.1 * (self._num_guesses - 1) if is_right else 0.0
        return reply, reward, is_right or self._num_guesses == MAX_GUESSES, {"success": is_right}


RIGHT = "That is it."


def start_of_game() -> str:
    return (
        f"I think of a number from 1 to {LARGEST}. You have {MAX_GUESSES} guesses. Answer with one number each time; I say "
        "whether mine is higher or lower."
    )


def reply_to(guess: str, number: int) -> str:
    if not re.fullmatch(r"\d{1,3}", guess.strip()):
        return "Answer with one number."
    guessed = int(guess)
    return RIGHT if guessed == number else "Higher." if guessed < number else "Lower."


def games(seed: int) -> list[dict[str, Any]]:
    """Returns games of a player who guesses any number that is still possible: better than chance, not as good as halving."""
    draw, rows = random.Random(seed), []
    for _ in range(400):
        number, low, high = draw.randint(1, LARGEST), 1, LARGEST
        messages: Messages = [{"role": "user", "content": start_of_game()}]
        for _ in range(MAX_GUESSES):
            guess = draw.randint(low, high)
            messages.append(said(str(guess)))
            if guess == number:
                break
            low, high = (guess + 1, high) if guess < number else (low, guess - 1)
            messages.append({"role": "user", "content": reply_to(str(guess), number)})
        if messages[-1]["role"] == "user":
            messages.pop()
        rows.append({"messages": messages})
    return rows


TASKS = {
    "multiply": RealTask(
        arguments=multiplication,
        demonstrations=calls_and_guesses,
        num_sft_steps=40,
        sft_tokens=2000,
        settings={"num_train_iters": 12, "batch_size": 32, "group_size": 4, "mini_batch_size": 16, "max_tokens": 64},
        tools=("off", "shuffled"),
        arms={"SFT on calls only": calls_only, "RFT, as many episodes": None},
    ),
    "reverse_text": RealTask(
        arguments=reversal,
        demonstrations=reversed_texts,
        score="reward/mean",
        num_sft_steps=100,
        sft_tokens=2000,
        settings={"num_train_iters": 20, "batch_size": 128, "group_size": 16, "mini_batch_size": 64, "max_tokens": 64},
    ),
    "guess_the_number": RealTask(
        arguments=lambda seed, num_held_out: {"environment": GuessTheNumber},
        demonstrations=games,
        score="reward/mean",
        num_sft_steps=60,
        sft_tokens=2000,
        settings={"num_train_iters": 20, "batch_size": 64, "group_size": 8, "mini_batch_size": 32, "max_tokens": 256},
    ),
}

"""`python -m benchmarks.agents [PROGRAM …]`: agents that were not written for this library, trained with `Trainer(agent=…)`.

`anthropic`: a plain loop over Anthropic Messages. `openai-agents`: an unmodified program of that framework, if it is installed.
Both have the tool `multiply`. A small model that is created here is first taught to call it in half of the answers, and to guess
in the others; then GRPO. Measured is the mean reward of sampled episodes before and after, on one core. Finished runs are not
repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch

from midthought import Trainer
from midthought.tools.definition import Tool, ToolDefinition
from midthought.types import Task

PROBLEMS = [{"question": f"What is {a} times {b}?", "answer": str(a * b)} for a in range(12, 20) for b in range(23, 27)]
SCHEMA = {
    "properties": {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}},
    "required": ["a", "b"],
    "title": "multiply_args",
    "type": "object",
    "additionalProperties": False,
}
"""As openai-agents writes it, so that all prompts are equal."""
SETTINGS: dict[str, Any] = {
    "hidden_size": 64,
    "num_layers": 2,
    "call_format": "hermes",
    "algorithm": "grpo",
    "batch_size": 64,
    "mini_batch_size": 64,
    "group_size": 8,
    "learning_rate": 5e-4,
    "max_tokens": 160,
    "num_train_iters": 16,
    "progress": False,
}
GOAL = 0.2
"""Gain of the mean reward."""


class Multiply(Tool):
    """The tool as the demonstrations show it. In the episodes, the agents run it."""

    definition = ToolDefinition("multiply", "Multiplies two whole numbers.", SCHEMA)

    def execute(self, a: int, b: int) -> str:
        return str(a * b)


def anthropic(task: Task, client: Any) -> float:
    """A plain loop: asks, runs the calls, and returns whether the answer is right."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.prompt}]
    tools = [{"name": "multiply", "description": Multiply.definition.description, "input_schema": SCHEMA}]
    with httpx.Client(base_url=client.anthropic_base_url, headers={"x-api-key": client.api_key}, timeout=600) as http:
        for _ in range(4):
            body = {"model": client.model, "max_tokens": 160, "messages": messages, "tools": tools}
            response = http.post("/v1/messages", json=body).raise_for_status().json()
            messages.append({"role": "assistant", "content": response["content"]})
            if response["stop_reason"] != "tool_use":
                text = "".join(block["text"] for block in response["content"] if block["type"] == "text")
                return float(text.strip() == task.answer)
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": Multiply().execute(**block["input"])}
                for block in response["content"]
                if block["type"] == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
    return 0.0


async def openai_agents(task: Task, client: Any) -> float:
    """A program of openai-agents."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    @function_tool
    def multiply(a: int, b: int) -> int:
        """Multiplies two whole numbers."""
        return a * b

    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as openai:
        model = OpenAIChatCompletionsModel(model=client.model, openai_client=openai)
        result = await Runner.run(Agent(name="calculator", tools=[multiply], model=model), task.prompt, max_turns=4)
    return float(str(result.final_output).strip() == task.answer)


PROGRAMS: dict[str, Callable[..., Any]] = {"anthropic": anthropic, "openai-agents": openai_agents}


def demonstrations() -> list[list[dict[str, Any]]]:
    """For each problem, a conversation with a call, and one with the answer of another problem."""
    draw, shown = random.Random(0), []
    for row in PROBLEMS:
        asked = {"role": "user", "content": row["question"]}
        a, b = map(int, filter(str.isdigit, row["question"].removesuffix("?").split()))
        call = {"function": {"name": "multiply", "arguments": {"a": a, "b": b}}}
        called = {"role": "assistant", "content": "", "reasoning_content": "I multiply.", "tool_calls": [call]}
        answer = {"role": "assistant", "content": row["answer"], "reasoning_content": "I read."}
        guess = {"role": "assistant", "content": draw.choice(PROBLEMS)["answer"], "reasoning_content": "I guess."}
        shown += [[asked, called, {"role": "tool", "content": row["answer"]}, answer], [asked, guess]]
    return shown


def learn(program: str, seed: int) -> dict[str, float]:
    """Trains one agent, and returns its figures."""
    torch.set_num_threads(1)
    with Trainer(
        agent=PROGRAMS[program],
        dataset=PROBLEMS,
        validation=PROBLEMS * 4,
        tools=[Multiply()],
        demonstrations=demonstrations(),
        seed=seed,
        num_validation_questions=4 * len(PROBLEMS),
        validate_every=0,
        **SETTINGS,
    ) as trainer:
        trainer.sft(num_steps=800, batch_tokens=2048, learning_rate=2e-3)
        before, began = trainer.evaluate(sampled=True), time.perf_counter()
        history = trainer.fit()
        seconds, after = time.perf_counter() - began, trainer.evaluate(sampled=True)
    return {
        "before": before["reward/mean"],
        "after": after["reward/mean"],
        "continued": min(row.get("agent/continued", 1.0) for row in history),
        "errors": sum(row["agent/errors"] for row in history) / len(history),
        "difference": max(row["logprob_difference_mean"] for row in history),
        "seconds": seconds,
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help=f"any of {', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/agents"))
    parser.add_argument("--here", action="store_true", help="measure the first program and seed in this process")
    arguments = parser.parse_args(words)
    programs = arguments.programs or [*PROGRAMS]
    if unknown := sorted(set(programs) - set(PROGRAMS)):
        parser.error(f"unknown program {unknown[0]!r}; there is: {', '.join(PROGRAMS)}")
    if importlib.util.find_spec("agents") is None and "openai-agents" in programs:
        print("openai-agents is not installed: left out")
        programs.remove("openai-agents")
    if arguments.here:
        arguments.out.mkdir(parents=True, exist_ok=True)
        found = learn(programs[0], arguments.seeds[0])
        (arguments.out / f"{programs[0]}-{arguments.seeds[0]}.json").write_text(json.dumps(found))
        return
    names = ("before", "after", "continued", "errors", "difference", "seconds")
    print(f"| program | seed | {' | '.join(names)} | gain ≥ {GOAL} |\n" + "| --- " * 9 + "|")
    for program, seed in itertools.product(programs, arguments.seeds):
        path = arguments.out / f"{program}-{seed}.json"
        if not path.exists():
            own = [program, "--seeds", str(seed), "--out", str(arguments.out), "--here"]
            subprocess.run([sys.executable, "-m", "benchmarks.agents", *own], check=True)
        row = json.loads(path.read_text())
        met = "met" if row["after"] - row["before"] >= GOAL else "**not met**"
        print(f"| {program} | {seed} | {' | '.join(f'{row[name]:.3g}' for name in names)} | {met} |", flush=True)


if __name__ == "__main__":
    main()

"""An agent that knows nothing of midthought, trained as it is: it gets a base URL and a key.

python examples/train_an_agent.py                                  # tiny model, CPU, seconds
python examples/train_an_agent.py --model Qwen/Qwen3-0.6B --iterations 100

The agent uses the client of OpenAI; one of Anthropic takes `client.anthropic_base_url`. Agents of frameworks: docs/agents.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openai import OpenAI
from options import example_parser, make_config, print_rewards

from midthought import Task, Trainer

PROBLEMS = [{"question": f"What is {a} times {b}?", "answer": str(a * b)} for a in range(12, 20) for b in range(23, 27)]
NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
FUNCTION = {"name": "multiply", "description": "Multiplies two whole numbers.", "parameters": SCHEMA}


def calculator(task: Task, client: Any) -> float:
    """Answers a question with a tool of its own. Returns the reward: 1 for the right answer."""
    openai = OpenAI(base_url=client.base_url, api_key=client.api_key)
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    for _ in range(4):
        answer = openai.chat.completions.create(
            model=client.model, messages=messages, tools=[{"type": "function", "function": FUNCTION}]
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return float(task.answer in (message.content or "").split())
        for call in message.tool_calls:
            given = json.loads(call.function.arguments)  # what the policy writes wrongly raises: reward 0
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] * given["b"])})
    return 0.0


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    options = example_parser(__doc__).parse_args(arguments)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with Trainer(config, agent=calculator, dataset=PROBLEMS, run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()

"""Train a model to use the tools of an MCP server, which is started here over stdio.

python examples/mcp_tools.py                               # tiny model, CPU, seconds
python examples/mcp_tools.py --model Qwen/Qwen3-0.6B --iterations 200

Needs the extra `mcp`. For a running server use `mcp_tools(url="https://…/mcp")` instead of `command`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from options import example_parser, make_config, print_rewards

from midthought import Trainer, mcp_tools

SERVER = Path(__file__).with_name("mcp_server.py")
TASKS = [
    {"question": "When is the library open?", "answer": "9 to 18"},
    {"question": "When is the museum open?", "answer": "10 to 17"},
    {"question": "When is the pool open?", "answer": "7 to 21"},
    {"question": "When is the market open?", "answer": "6 to 13"},
]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    options = example_parser(__doc__).parse_args(arguments)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    with mcp_tools(command=[sys.executable, str(SERVER)]) as tools:
        print("tools of the server:", ", ".join(each.definition.name for each in tools))
        with Trainer(config, dataset=TASKS, tools=tools, run_path=options.run) as trainer:
            history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()

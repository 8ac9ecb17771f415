"""GRPO on grade-school word problems; the model calls a calculator while it reasons.

python examples/gsm8k_calculator.py                                    # tiny model, CPU, seconds
python examples/gsm8k_calculator.py --model Qwen/Qwen3-0.6B --data gsm8k_train.jsonl --iterations 200

Each line of the data file holds "question" and "answer". GSM8K files work as they are: the last number of an answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import CalculateTool, Trainer, load_tasks
from midthought.env.answer_matching import numeric_match
from midthought.env.rewards import matched, num_failed_calls, weighted

PROBLEMS = [
    {"question": "A baker fills 14 trays with 12 rolls each and sells 95 rolls. How many are left?", "answer": 73},
    {"question": "A train covers 84 km per hour for 3.5 hours. How many km is that?", "answer": 294},
    {"question": "Tickets cost 17 dollars. How much do 26 tickets cost?", "answer": 442},
    {"question": "A tank of 900 liters loses 18 liters a day. How many liters are left after 23 days?", "answer": 486},
]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--data", help="JSON Lines, CSV or Parquet file of problems; default: four built-in problems")
    options = parser.parse_args(arguments)
    trainer = Trainer(
        make_config(options, adv_estimator="grpo", group_size=4),
        dataset=load_tasks(options.data or PROBLEMS),
        tools=[CalculateTool()],
        rewards=[
            matched(numeric_match),
            weighted(num_failed_calls, -0.1),
        ],
        run_path=options.run,
    )
    with trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()

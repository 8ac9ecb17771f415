"""GRPO on grade-school word problems; the model calls a calculator while it reasons.

python examples/gsm8k_calculator.py                                    # tiny model, CPU, seconds
python examples/gsm8k_calculator.py --model Qwen/Qwen3-0.6B --data gsm8k --iterations 200

The data are a data set by name (docs/data.md) or a file with the columns "question" and "answer".
"""

from __future__ import annotations

from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import CalculateTool, Trainer

PROBLEMS = [
    {"question": "A baker fills 14 trays with 12 rolls each and sells 95 rolls. How many are left?", "answer": 73},
    {"question": "A train covers 84 km per hour for 3.5 hours. How many km is that?", "answer": 294},
    {"question": "Tickets cost 17 dollars. How much do 26 tickets cost?", "answer": 442},
    {"question": "A tank of 900 liters loses 18 liters a day. How many liters are left after 23 days?", "answer": 486},
]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--data", help="data set or file (JSON Lines, CSV, Parquet); default: four built-in problems")
    options = parser.parse_args(arguments)
    trainer = Trainer(
        make_config(options, adv_estimator="grpo", group_size=4),
        dataset=options.data or PROBLEMS,
        tools=[CalculateTool()],
        rewards=["correct", ("num_failed_calls", -0.1)],
        run_path=options.run,
    )
    with trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()

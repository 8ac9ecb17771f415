"""Train in an environment of an OpenEnv server: every episode is a session of its own.

python examples/openenv_server.py --url http://localhost:8000     # tiny model, CPU, seconds
python examples/openenv_server.py --url http://localhost:8000 --field code --model Qwen/Qwen3-0.6B --iterations 200

Needs the extra `openenv`, and a running server that allows 16 sessions at once (max_concurrent_envs=16). Without `--field` the
server's schema decides how an answer becomes an action.
"""

from __future__ import annotations

from collections.abc import Sequence

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.env.openenv import OpenEnvEnvironment


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--url", required=True, help="address of the server")
    parser.add_argument("--field", help="field of the action that gets the policy's answer")
    options = parser.parse_args(arguments)
    config = make_config(options, adv_estimator="grpo", group_size=4)
    config.environment.max_steps = 4
    to_action = (lambda text: {options.field: text}) if options.field else None
    with Trainer(config, OpenEnvEnvironment(options.url, text_to_action=to_action), run_path=options.run) as trainer:
        history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()

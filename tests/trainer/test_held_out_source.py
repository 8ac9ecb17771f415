"""Held-out episodes share the engine with training, and nothing else."""

from small_environments import QUESTIONS

from midthought import RayPPOTrainer, create_default_config
from midthought.data.tasks import load_tasks
from midthought.rollout.selection import ShuffledTasks, collect


def test_the_journal_holds_training_episodes_only_whatever_is_done_with_the_held_out_source(untaught, tmp_path):
    sizes = {"batch_size": 4, "mini_batch_size": 4, "num_train_iters": 1, "max_staleness": 2, "validate_every": 0}
    config = create_default_config(preset="tiny", inference={"max_tokens": 24, "overlap": False}, training=sizes)

    def journal():
        return {path: path.read_bytes() for path in (tmp_path / "run").rglob("journal/*.jsonl")}

    with RayPPOTrainer(
        config, dataset=QUESTIONS, reward_fn=lambda _: 1.0, run_path=tmp_path / "run", **untaught
    ) as trainer:
        trainer.fit()
        assert trainer.source.stream.journal.is_open and (before := journal())
        played = collect(trainer.held_out, ShuffledTasks(load_tasks(QUESTIONS), 0), config.frozen(), 0)
        trainer.held_out.update_weights()
        assert len(played.data) == 4 and journal() == before

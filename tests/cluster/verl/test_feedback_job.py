"""`midthought train feedback --engine verl`: the bundles for RL and for the warm-up, and every mistake as one line."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
import pytest
import yaml
from commands import train, write_bundle
from feedback_world import MADE, write, write_conversations, write_sft

from midthought.cluster.verl import installed
from midthought.cluster.verl.record import task_of
from midthought.feedback.prompts import SYSTEM_PROMPT, TOOL_NAME
from midthought.recipes.feedback.verl import feedback_tool


def test_the_seed_profile_has_the_seeds_own_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (write(monkeypatch, tmp_path, "seed") / "train.sh").read_text()
    for word in (
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-32B-Instruct",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.clip_ratio_c=10.0",
        "actor_rollout_ref.actor.optim.lr=5e-07",
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
        "data.max_prompt_length=2048",
        "data.max_response_length=8192",
        "data.train_batch_size=32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.rollout.val_kwargs.n=4",
        "actor_rollout_ref.rollout.val_kwargs.top_p=0.6",
        "trainer.n_gpus_per_node=4",
        "trainer.total_epochs=3",
        "trainer.save_freq=200",
    ):
        assert f"    {word} \\\n" in script, word
    assert "critic." not in script


def test_the_bundle_has_the_problems_the_tool_and_chat_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write(monkeypatch, tmp_path, "cluster")
    [loop] = yaml.safe_load((bundle / "agent_loop.yaml").read_text())
    assert (loop["options"]["call_format"], loop["options"]["max_turns"]) == ("hermes", 3)
    assert loop["options"]["supply_options"]["preset"] == "ordered"
    rows = pyarrow.parquet.read_table(bundle / "data" / "train.parquet").to_pylist()
    assert len(rows) == 64
    system, user = rows[0]["prompt"]
    assert system["content"].startswith(SYSTEM_PROMPT) and f'"name": "{TOOL_NAME}"' in system["content"]
    assert user["content"] == task_of(rows[0]).prompt
    assert pyarrow.parquet.read_table(bundle / "data" / "validation.parquet").num_rows == 6
    [tool] = yaml.safe_load((bundle / "tools.yaml").read_text())["tools"]
    assert tool["config"]["options"]["critic"] == "hints"
    made = feedback_tool(**tool["config"]["options"])
    assert made.definition.json_schema() == tool["tool_schema"]
    assert made.for_task(task_of(rows[0])) is not made


def test_validation_on_another_data_set_is_named_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grade.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "#### {n}"}}\n' for n in range(80)))
    (tmp_path / "aime.jsonl").write_text("".join(f'{{"Problem": "A{n}?", "Answer": {n}}}\n' for n in range(30)))
    sources = {"source": "grade.jsonl", "test_source": "aime.jsonl"}
    words = [f"problems.{key}={tmp_path / file}" for key, file in sources.items()]
    words += ["problems.dataset=gsm8k", "problems.test_dataset=aime_2024", "feedback.critic=outcome"]
    bundle = write_bundle(monkeypatch, "feedback", tmp_path / "bundle", "--config", "seed", *words)
    for split, name, count in (("train", "gsm8k", 80), ("validation", "aime_2024", 10)):
        rows = pyarrow.parquet.read_table(bundle / "data" / f"{split}.parquet").to_pylist()
        assert [row["data_source"] for row in rows] == [name] * count


def test_a_critic_on_a_server_gets_the_settings_that_it_is_asked_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("feedback.critic=model", "feedback.servers=[http://h12:1233, http://h15:1233/v1/chat/completions]")
    bundle = write(monkeypatch, tmp_path, "seed", *words)
    [tool] = yaml.safe_load((bundle / "tools.yaml").read_text())["tools"]
    options = tool["config"]["options"]
    assert options["servers"] == ["http://h12:1233/v1", "http://h15:1233/v1"]
    assert (options["max_tokens"], options["timeout_seconds"], options["seed"]) == (2000, 30.0, 14)
    assert feedback_tool(**options).timeout_seconds == 90.0  # 30 for each server, 30 to spare


# -- the warm-up ------------------------------------------------------------------------------------------------------


def test_the_warm_up_is_a_bundle_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_sft(monkeypatch, tmp_path, "seed")
    files = sorted(str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file())
    assert files == ["config.yaml", "data/train.parquet", "requirements.txt", "train.sh"]
    script = (bundle / "train.sh").read_text()
    assert "-m torch.distributed.run --standalone --nproc-per-node=4 -m verl.trainer.sft_trainer \\\n" in script
    for word in (
        "model.path=Qwen/Qwen2.5-32B-Instruct",
        "\"data.train_files='$MIDTHOUGHT_BUNDLE/data/train.parquet'\"",
        "data.train_batch_size=32",
        "data.max_length=16384",
        "engine.ulysses_sequence_parallel_size=4",
        "trainer.total_training_steps=78",
        "trainer.total_epochs=78",  # 36 conversations: one step a pass
        "'checkpoint.save_contents=[model,optimizer,extra,hf_model]'",
    ):
        assert f"    {word} \\\n" in script, word


def test_its_conversations_are_in_the_words_of_the_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_sft(monkeypatch, tmp_path, "seed")
    rows = pyarrow.parquet.read_table(bundle / "data" / "train.parquet").to_pylist()
    assert [len(row["messages"]) for row in rows[:3]] == [3, 5, 7]
    system, user, answer, result, last = rows[1]["messages"]
    rl = pyarrow.parquet.read_table(write(monkeypatch, tmp_path, "seed") / "data" / "train.parquet").to_pylist()
    assert system == rl[0]["prompt"][0]
    assert user["content"].startswith("What is 1 + 1?")
    call = '<tool_call>\n{"name": "get_feedback", "arguments": {"current_answer": "It is \\\\boxed{0}."}}\n</tool_call>'
    assert answer == {"role": "assistant", "content": f"It is \\boxed{{0}}.\n{call}"}
    assert result["role"] == "tool" and result["content"].startswith("Too small by 1.")
    assert last == {"role": "assistant", "content": "It is \\boxed{1}."}


def test_several_nodes_meet_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (write_sft(monkeypatch, tmp_path, "cluster") / "train.sh").read_text()
    assert (
        '--nnodes=2 --nproc-per-node=8 --rdzv-id=midthought --rdzv-backend=c10d --rdzv-endpoint="$RENDEZVOUS"' in script
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stage", "sft", "sft.source=null"), "sft.source is empty"),
        (("--stage", "sft", "sft.source=none.parquet"), "none.parquet"),
        (("--stage", "sft", "verl.sft_trainer.batch_size=40"), "36 conversations do not fill one step of 40"),
        (
            ("--stage", "sft", "verl.sft_trainer.batch_size=30"),
            "verl.sft_trainer.batch_size=30 is not a multiple of the 16 GPUs",
        ),
        (("--stage", "sft", "model.local_path=''"), "model.local_path is empty"),
        (("--stage", "sft", "sft.num_steps=0"), "there is nothing to train"),
        (("--stage", "sft", "verl.sft_trainer.batch=1"), "unknown key 'batch' in verlsft"),
        ((*MADE, "feedback.critic=hint"), "hints"),
        ((*MADE, "reward.mended_bonus=0.3"), "the first must earn more"),
        ((*MADE, "problems.num_train=20"), "20 training tasks do not fill one batch of 32 prompts"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(installed, "has_verl", lambda: False)
    source = f"sft.source={write_conversations(tmp_path)}"
    options = ("--engine", "verl", "--dry-run", "--run", str(tmp_path / "b"))
    assert train(monkeypatch, "feedback", *options, source, *words) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1
    assert not (tmp_path / "b").exists()

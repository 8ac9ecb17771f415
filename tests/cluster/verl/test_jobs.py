"""`midthought train RECIPE --engine verl`: the bundles, and every mistake as one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from bundles import (
    MADE,
    rows_of_bundle,
    tool_of_bundle,
    write_bundle,
    write_feedback,
    write_podcast,
)
from small_runs import write_short_transcripts

from midthought.cluster.verl import bundle
from midthought.cluster.verl.record import task_of
from midthought.errors import ModelPathError
from midthought.feedback.settings import SYSTEM_PROMPT, TOOL_NAME
from midthought.recipes.feedback.verl import feedback_tool
from midthought.recipes.podcast import recipe
from midthought.recipes.podcast.verl import memory_tool


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the feedback recipe's profile `seed`."""
    return write_feedback(tmp_path_factory.mktemp("seed"), "seed")


def test_the_cluster_profile_has_room_for_its_segments_and_its_memory_goes_along(tmp_path: Path) -> None:
    bundle = write_podcast(tmp_path, "cluster")
    [loop] = yaml.safe_load((bundle / "agent_loop.yaml").read_text())
    script = (bundle / "train.sh").read_text()
    assert loop["options"]["max_segment_length"] == 256 and "data.max_response_length=4096" in script
    rows = rows_of_bundle(bundle)
    assert len(rows) >= 256
    assert [said["role"] for said in rows[0]["prompt"]] == ["system", "user"]
    assert "#call memory_retrieval" in rows[0]["prompt"][0]["content"]
    options = tool_of_bundle(bundle)["config"]["options"]
    assert options["path"] == "${oc.env:MIDTHOUGHT_BUNDLE}/memory"
    found = memory_tool(**options | {"path": str(bundle / "memory")})
    asked = next(task_of(row) for row in rows if task_of(row).labels["needs_memory"])
    assert found.execute(query=asked.prompt.split('"')[1], k=3).metadata["chunk_ids"]


def test_a_file_of_ones_own_may_hold_a_section_for_verl(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "verl: {num_nodes: 2, overrides: {trainer.save_freq: 7}}\ntraining: {seed: 3}\n"
    )
    chosen = recipe.begin_with_verl(["verl.gpus_per_node=4"], tmp_path / "mine.yaml")
    assert (chosen.verl.num_nodes, chosen.verl.gpus_per_node, chosen.training.seed) == (2, 4, 3)


def test_the_run_of_our_own_warm_up_gives_the_initial_model(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "config.json").write_text("{}")
    assert recipe.begin_with_verl([], from_path=tmp_path).model.local_path == str(tmp_path / "warmup")
    with pytest.raises(ModelPathError, match="holds no policy; give a run folder, a checkpoint"):
        recipe.begin_with_verl([], from_path=tmp_path / "none")


def test_the_seed_profile_has_the_seeds_own_values(seed: Path) -> None:
    script = (seed / "train.sh").read_text()
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


def test_the_bundle_has_the_problems_the_tool_and_chat_turns(tmp_path: Path) -> None:
    bundle = write_feedback(tmp_path, "cluster")
    [loop] = yaml.safe_load((bundle / "agent_loop.yaml").read_text())
    assert (loop["options"]["call_format"], loop["options"]["max_turns"]) == ("hermes", 3)
    assert loop["options"]["supply_options"]["preset"] == "ordered"
    rows = rows_of_bundle(bundle)
    assert len(rows) == 64
    system, user = rows[0]["prompt"]
    assert system["content"].startswith(SYSTEM_PROMPT) and f'"name": "{TOOL_NAME}"' in system["content"]
    assert user["content"] == task_of(rows[0]).prompt
    assert len(rows_of_bundle(bundle, "validation")) == 6
    tool = tool_of_bundle(bundle)
    assert tool["config"]["options"]["critic"] == "hints"
    made = feedback_tool(**tool["config"]["options"])
    assert made.definition.json_schema() == tool["tool_schema"]
    assert made.for_task(task_of(rows[0])) is not made


def test_validation_on_another_data_set_is_named_after_it(tmp_path: Path) -> None:
    (tmp_path / "grade.jsonl").write_text("".join(f'{{"question": "{n}?", "answer": "#### {n}"}}\n' for n in range(80)))
    (tmp_path / "aime.jsonl").write_text("".join(f'{{"Problem": "A{n}?", "Answer": {n}}}\n' for n in range(30)))
    sources = {"source": "grade.jsonl", "test_source": "aime.jsonl"}
    words = [f"problems.{key}={tmp_path / file}" for key, file in sources.items()]
    words += ["problems.dataset=gsm8k", "problems.test_dataset=aime_2024", "feedback.critic=outcome"]
    bundle = write_bundle("feedback", tmp_path / "bundle", "seed", *words)
    for split, name, count in (("train", "gsm8k", 80), ("validation", "aime_2024", 10)):
        rows = rows_of_bundle(bundle, split)
        assert [row["data_source"] for row in rows] == [name] * count


def test_a_critic_on_a_server_gets_the_settings_that_it_is_asked_with(tmp_path: Path) -> None:
    words = ("feedback.critic=model", "feedback.servers=[http://h12:1233, http://h15:1233/v1/chat/completions]")
    options = tool_of_bundle(write_feedback(tmp_path, "seed", *words))["config"]["options"]
    assert options["servers"] == ["http://h12:1233/v1", "http://h15:1233/v1"]
    assert (options["max_tokens"], options["timeout_seconds"], options["seed"]) == (2000, 30.0, 14)
    assert feedback_tool(**options).timeout_seconds == 90.0  # 30 for each server, 30 to spare


DRY = ("--engine", "verl", "--dry-run")


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        ("podcast", ("--engine", "verll"), "unknown engine 'verll'. Did you mean 'verl'?"),
        ("podcast", ("--gpu-gib", "24"), "--gpu-gib describes a GPU for --dry-run"),
        (
            "podcast",
            ("--engine", "verl", "--stage", "sft"),
            "leave --engine out for the warm-up, then give its run to verl",
        ),
        ("podcast", ("--engine", "verl", "--stage", "evaluate"), "unknown stage 'evaluate'"),
        ("podcast", ("--engine", "verl", "--resume"), "run the bundle's train.sh again"),
        ("podcast", (*DRY, "--config", "clutser"), "no file and no profile. Did you mean 'cluster'?"),
        ("podcast", (*DRY, "verl.gpus=4"), "unknown key 'gpus' in verl"),
        ("podcast", (*DRY, "training.batch_size=96"), "not a multiple of mini_batch_size=64"),
        ("podcast", ("--engine", "verl"), "verl is not installed; install it with: pip install 'midthought[verl]'"),
        ("feedback", (*DRY, *MADE, "model.local_path=''"), "model.local_path is empty"),
        ("feedback", (*DRY, *MADE, "feedback.critic=hint"), "hints"),
        ("feedback", (*DRY, *MADE, "problems.num_train=20"), "20 training tasks do not fill one batch of 32 prompts"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    recipe: str, words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(bundle, "has_verl", lambda: False)
    if recipe == "podcast":
        words = (f"memory.transcripts={write_short_transcripts(tmp_path / 'episodes')}", *words)
    code, _, told = call("train", recipe, "--run", tmp_path / "b", *words)
    assert code == 2 and said in told and told.count("\n") == 1
    assert not (tmp_path / "b").exists()

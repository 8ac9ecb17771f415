"""A really installed verl takes the bundle: every key, its data set, its tools and memory, its agent loop and reward."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here; see MIDTHOUGHT_VERL_PYTHON in test_real_verl.py")

from bundles import words_of, write_feedback, write_podcast
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.workers.rollout.replica import TokenOutput
from with_verl import dataset, generate, loaded, require_values, scored
from worlds import Manager

from midthought.cluster.verl.bundle import compose, hydra_override
from midthought.cluster.verl.overrides import TABLE, overrides_of
from midthought.cluster.verl.record import task_of
from midthought.cluster.verl.settings import DerivedValues, VerlConfig
from midthought.config import RecipeConfig
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import SettingsError
from midthought.recipes import feedback, podcast
from midthought.tokenization import Renderer

RECIPES = {
    "podcast": (write_podcast, podcast.recipe.begin_with_verl, 300),
    "feedback": (write_feedback, feedback.recipe.begin_with_verl, 64),
}


@pytest.mark.parametrize("profile", ["seed", "cluster"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_its_configuration_has_every_key_and_takes_every_value(
    recipe: str, profile: str, tmp_path: Path, model_path: Path
) -> None:
    write, settings, num_tasks = RECIPES[recipe]
    bundle, chosen = write(tmp_path, profile), settings([], Path(profile))
    require_values(
        compose(words_of(bundle)), overrides_of(DerivedValues(chosen, chosen.verl, recipe, num_tasks)), bundle
    )
    here = [f"{each}.model.path={model_path}" for each in ("actor_rollout_ref", "critic")]  # its checks read the model
    composed = compose([*words_of(bundle), *here])
    assert callable(get_custom_reward_fn(composed))
    assert need_critic(composed) == (recipe == "podcast")
    assert recipe == "podcast" or not need_reference_policy(composed)
    validate_config(composed, need_reference_policy(composed), need_critic(composed))


def test_every_row_of_the_table_names_a_key_of_its_configuration() -> None:
    """Also the rows that no profile uses (adapters, padded micro-batches, …)."""
    composed = compose(["actor_rollout_ref.rollout.name=vllm"])
    for row in TABLE:
        where, _, name = row.key.rpartition(".")
        assert name in OmegaConf.select(composed, where), row.key


GROUP_SIZES = {"grpo": 8, "dr_grpo": 8, "rloo": 4, "reinforce_plus_plus": None, "reinforce_plus_plus_baseline": 4}
OF_GROUPS = [{"adv_estimator": name, "group_size": size, "batch_size": 64} for name, size in GROUP_SIZES.items()]
OTHER_SETTINGS = [
    *(training | {"mini_batch_size": 32} for training in OF_GROUPS),
    OF_GROUPS[0] | {"policy_loss": "cispo", "lr_schedule": "cosine", "max_dynamic_batches": 2},
    {"kl_coef": 0.05, "target_kl": 0.1, "kl_loss_coef": 0.1, "kl_loss_kind": "abs", "rollout_correction": "truncated"},
]


@pytest.mark.parametrize("training", OTHER_SETTINGS, ids=lambda training: training.get("adv_estimator", "gae"))
def test_other_settings_pass_its_own_checks(training: dict[str, Any], model_path: Path) -> None:
    config = RecipeConfig().merged({"model": {"local_path": str(model_path), "lora_rank": 8}, "training": training})
    for verl in (VerlConfig(), VerlConfig(rows_per_gpu=2, rollout="sglang")):
        overrides = overrides_of(DerivedValues(config, verl, "test", 500))
        composed = compose([hydra_override(key, value) for key, value in overrides.items()])
        if verl.rollout == "sglang":  # of vLLM with adapters it asks the installed vLLM
            validate_config(composed, need_reference_policy(composed), need_critic(composed))


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(SettingsError, match=r"verl does not accept the settings.*save_frequency"):
        compose(["trainer.save_frequency=3"])


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_path: Path) -> Path:
    made = write_podcast(tmp_path, "cluster", f"model.local_path={model_path}", "verl.num_validation_rows=6")
    monkeypatch.setenv("MIDTHOUGHT_BUNDLE", str(made))
    return made


def test_its_data_set_reads_the_rows_and_leaves_out_prompts_that_do_not_fit(
    bundle: Path, tokenizer: Any, renderer: Renderer
) -> None:
    read = dataset(compose(words_of(bundle)), bundle / "data" / "train.parquet", tokenizer)
    assert len(read) == 300
    assert task_of(read[7]).prompt == read[7]["raw_prompt"][-1]["content"]
    lengths = [len(renderer.prompt(row["raw_prompt"])) for row in (read[index] for index in range(300))]
    limit = sorted(lengths)[150]
    short = compose([*words_of(bundle), f"data.max_prompt_length={limit}"])
    kept = dataset(short, bundle / "data" / "train.parquet", tokenizer)
    assert 0 < len(kept) < 300
    # the instruction names <think>, which we spell out: the agent loop has room for what verl did not count
    room = short.actor_rollout_ref.rollout.prompt_length
    room = room - compose(words_of(bundle)).data.max_prompt_length + limit
    assert max(len(renderer.prompt(kept[index]["raw_prompt"])) for index in range(len(kept))) <= room


def test_an_episode_goes_from_its_data_through_memory_and_loop_to_its_reward(
    bundle: Path, tokenizer: Any, renderer: Renderer
) -> None:
    config = compose(words_of(bundle))
    batch = loaded(config, bundle / "data" / "validation.parquet", tokenizer)
    tasks = [task_of({"extra_info": info}) for info in batch.non_tensor_batch["extra_info"]]
    by_prompt = {each.prompt: each for each in tasks}

    def policy(episode: int, token_ids: Any) -> str | None:
        text = renderer.decode(token_ids)
        task = next(each for prompt, each in by_prompt.items() if prompt in text)
        said = text.rpartition("assistant\n")[2]
        if said.endswith("</think>" + task.answer):
            return None
        quote = task.prompt.split('"')[1]
        return (
            f"</think>{task.answer}" if "_result:" in said else f'<think>#call memory_retrieval {{"query": "{quote}"}}'
        )

    outputs, padded = generate(config, Manager(ScriptedEngine(policy, renderer), TokenOutput), batch)
    assert len(outputs) == 6
    for row, (task, judged) in enumerate(zip(tasks, scored(config, tokenizer, batch, outputs, padded), strict=True)):
        text = renderer.decode(outputs[row].response_ids)
        assert re.search(r"#memory_retrieval_result:\n\[1\] (?:speaker: .*; )?episode: ", text)
        # right answer 1, well-formed thought 0.1, one call -0.1
        assert judged["reward_score"] == pytest.approx(1.0), (task, text, judged)
        assert judged["reward_extra_info"]["reward_thought"] == pytest.approx(0.1)
        assert judged["reward_extra_info"]["num_calls"] == 1.0

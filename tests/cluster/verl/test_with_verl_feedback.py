"""A really installed verl takes the bundle of the feedback recipe's warm-up: its SFT trainer learns our answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here; see MIDTHOUGHT_VERL_PYTHON in test_real_verl.py")

import torch
from bundles import SFT_MODULE, words_of, write_feedback_sft
from cpu_commands import merged, on_cpu, run_on_cpu
from small_tokenizer import small_tokenizer
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from with_verl import require_values

from midthought.cluster.verl.bundle import compose
from midthought.cluster.verl.sft_bundle import SFT_CONFIG, sft_overrides
from midthought.models.pretrained import load_model, load_tokenizer
from midthought.recipes.feedback import recipe
from midthought.recipes.feedback.demonstrations import read_conversations
from midthought.recipes.feedback.reward import CALL_FORMAT
from midthought.recipes.feedback.verl import feedback_tool, sft_job
from midthought.tokenization import Renderer
from midthought.tools.registry import ToolRegistry
from midthought.trainer.demonstrations import DemonstrationReader
from midthought.trainer.rollouts import PromptBuilder


@pytest.mark.parametrize("profile", ["seed", "cluster"])
def test_its_sft_configuration_has_every_key(profile: str, tmp_path: Path) -> None:
    bundle = write_feedback_sft(tmp_path, profile)
    chosen = recipe.begin_with_verl([f"sft.source={tmp_path / 'sft.parquet'}"], Path(profile))
    composed = compose(words_of(bundle, SFT_MODULE), SFT_CONFIG)
    require_values(composed, sft_overrides(sft_job(chosen), chosen.verl), bundle)


QWEN_LIKE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("tags", [(), ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")])
def test_it_learns_the_assistants_turns_as_our_own_warm_up_does(tags: tuple[str, ...], tmp_path: Path) -> None:
    bundle = write_feedback_sft(tmp_path, "seed")
    tokenizer = small_tokenizer(QWEN_LIKE, pad="<|endoftext|>", tags=tags)
    renderer = Renderer(tokenizer)
    config = compose(words_of(bundle, SFT_MODULE), SFT_CONFIG)
    theirs = MultiTurnSFTDataset([str(bundle / "data" / "train.parquet")], tokenizer, config.data)
    chosen = recipe.begin_with_verl([], Path("seed"))
    tools = ToolRegistry([feedback_tool(critic="outcome")])
    prompts = PromptBuilder("\n\n".join(chosen.system_messages), tools, CALL_FORMAT, describes_tools=False)
    ours = DemonstrationReader(prompts, renderer, 10**6).read(read_conversations(tmp_path / "sft.parquet"), None)
    assert len(theirs) == len(ours) == 36
    newline = renderer.control("\n")
    for row, trajectory in zip((theirs[place] for place in range(36)), ours, strict=True):
        token_ids, mask = row["input_ids"].tolist(), row["loss_mask"].tolist()
        # they also learn the line end that the template writes after an answer; ours ends with its end-of-sequence token
        line_ends = [
            place for place in range(1, len(mask)) if mask[place] and token_ids[place - 1] == tokenizer.eos_token_id
        ]
        assert all(token_ids[place : place + 1] == newline for place in line_ends)
        mask = [int(flag and place not in line_ends) for place, flag in enumerate(mask)]
        learned = [token_id for token_id, flag in zip(token_ids, mask, strict=True) if flag]
        own = [token_id for token_id, flag in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if flag]
        assert len(line_ends) == 1 + trajectory.num_calls
        if tags:  # and they write a tag of which the tokenizer has a token as that token, wherever it stands
            assert renderer.decode(token_ids) == renderer.decode(trajectory.token_ids) + "\n"
            assert renderer.decode(learned) == renderer.decode(own)
        else:
            assert token_ids == [*trajectory.token_ids, *newline]
            assert mask == [*map(int, trajectory.loss_mask), 0]


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_its_trainer_takes_a_step_on_a_cpu_and_its_loss_is_that_of_the_answers(
    lora_rank: int, tmp_path: Path, model: Any, model_path: Path, tokenizer: Any
) -> None:
    chosen = (
        f"model.local_path={model_path}",
        f"model.lora_rank={lora_rank}",
        "verl.gpus_per_node=1",
        "verl.sft_trainer.batch_size=36",
    )
    bundle = write_feedback_sft(tmp_path, "seed", *chosen)
    words = [
        *on_cpu("model", "engine"),
        "engine.ulysses_sequence_parallel_size=1",
        "engine.strategy=fsdp2",
        "data.num_workers=0",
        "trainer.device=cpu",
        "trainer.total_training_steps=1",
        "trainer.logger=[console]",
        "optim.lr=1e-2",
        "optim.lr_warmup_steps=0",
    ]
    said = run_on_cpu(bundle, words)
    words = [*words_of(bundle, SFT_MODULE), *words]
    [loss] = re.findall(r"step:1 - .*train/loss:([\d.]+)", said)
    assert float(loss) == pytest.approx(_mean_loss(model, bundle, tokenizer, words), abs=1e-4)
    checkpoint = bundle / "checkpoints" / "global_step_1"
    folder = merged(checkpoint, tmp_path / "merged") / "lora_adapter" if lora_rank else checkpoint / "huggingface"
    learned = load_model(folder)
    assert _mean_loss(learned, bundle, tokenizer, words) < float(loss)
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()


def _mean_loss(model: Any, bundle: Path, tokenizer: Any, words: Sequence[str]) -> float:
    """Mean over all tokens that verl marks as learned."""
    data = MultiTurnSFTDataset(
        [str(bundle / "data" / "train.parquet")], tokenizer, compose(list(words), SFT_CONFIG).data
    )
    total, count = 0.0, 0
    for place in range(len(data)):
        row = data[place]
        with torch.no_grad():
            logprobs = torch.log_softmax(model(row["input_ids"][None]).logits[0, :-1].float(), -1)
        mask = row["loss_mask"][1:].bool()
        total -= float(logprobs.gather(1, row["input_ids"][1:, None])[:, 0][mask].sum())
        count += int(mask.sum())
    return total / count

"""The Parquet files as others load them: verl's data sets and TRL's trainer, where they are installed."""

import json
from typing import Any

import pytest

from midthought.data.problem_sets import load_problems
from midthought.engines.scripted import byte_tokenizer
from midthought.feedback.commands import write_verl_rows
from midthought.feedback.convert import convert
from midthought.types import Task

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.slow

TEMPLATE = """\
{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content }}
{%- if tools %}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{% endif %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' }}{{ call.function | tojson }}{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


@pytest.fixture
def conversations(tmp_path) -> str:
    """A file with one conversation of each kind."""
    rows = [
        {
            "unique_id": problem,
            "original_question": f"What is {problem} + {problem}?",
            "iteration": iteration,
            "is_correct": iteration == last,
            "full_response": [f"It is \\boxed{{{iteration}}}."],
            "feedback": "" if iteration == last else [f"Too small by {last - iteration}.", None],
        }
        for problem, last in (("0", 0), ("1", 1), ("2", 2))
        for iteration in range(last + 1)
    ]
    log, out = tmp_path / "log.jsonl", tmp_path / "sft.parquet"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    convert(log, out, strict=True)
    return str(out)


def parts(tokenizer: Any, token_ids: list[int], mask: list[int]) -> str:
    """What is learned from."""
    return tokenizer.decode([token for token, learned in zip(token_ids, mask, strict=True) if learned])


EXPECTED = [  # what the policy is to learn to write, conversation by conversation
    ["It is \\boxed{0}."],
    ["It is \\boxed{0}.", '"current_answer": "It is \\\\boxed{0}."', "It is \\boxed{1}."],
    ["It is \\boxed{0}.", "It is \\boxed{1}.", '"current_answer": "It is \\\\boxed{1}."', "It is \\boxed{2}."],
]


def check_what_is_learned(learned: list[str]) -> None:
    for words, expected in zip(learned, EXPECTED, strict=True):
        assert all(each in words for each in expected)
        assert words.count("<tool_call>") == (len(expected) > 1) + (len(expected) > 3)
        assert "Too small" not in words and "What is" not in words and "expert" not in words


def test_verl_learns_from_the_answers_and_the_calls_of_a_conversation(conversations, monkeypatch):
    # verl's data set imports its part for models of pictures, and that a name which transformers 5 does not have
    pictures = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    monkeypatch.setattr(pictures, "Qwen2VLCausalLMOutputWithPast", pictures.CausalLMOutputWithPast, raising=False)
    dataset = pytest.importorskip("verl.utils.dataset.multiturn_sft_dataset", exc_type=ImportError)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    rows = dataset.MultiTurnSFTDataset([conversations], tokenizer, {"max_length": 8000, "pad_mode": "no_padding"})
    found = [rows[number] for number in range(3)]
    check_what_is_learned([parts(tokenizer, row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in found])
    whole = tokenizer.decode(found[1]["input_ids"].tolist())
    assert "get_feedback" in whole.partition("<|im_end|>")[0] and "Too small by 1." in whole


def test_trl_learns_from_the_answers_and_the_calls_of_a_conversation(conversations, tmp_path):
    trl = pytest.importorskip("trl")
    templates = pytest.importorskip("trl.chat_template_utils")
    datasets = pytest.importorskip("datasets")
    from midthought.models.small_model import make_policy

    tokenizer = byte_tokenizer()
    tokenizer.chat_template = templates.qwen2_5_chat_template
    model = make_policy(tokenizer, hidden_size=16, num_layers=1, num_heads=1, max_length=8000, seed=0)
    rows = datasets.load_dataset("parquet", data_files=conversations, split="train", cache_dir=str(tmp_path / "cache"))
    options = trl.SFTConfig(
        str(tmp_path / "run"),
        assistant_only_loss=True,
        max_length=None,
        report_to=[],
        use_cpu=True,
        max_steps=1,
        bf16=False,
    )
    trainer = trl.SFTTrainer(model, options, train_dataset=rows, processing_class=tokenizer)
    masked = [(row["input_ids"], [label != -100 for label in row["labels"]]) for row in trainer.train_dataset]
    check_what_is_learned([parts(tokenizer, *each) for each in masked])
    trainer.train()


def test_verl_loads_the_problems(tmp_path):
    dataset = pytest.importorskip("verl.utils.dataset.rl_dataset", exc_type=ImportError)
    omegaconf = pytest.importorskip("omegaconf")
    tasks = load_problems("multiplication", limit=5)
    write_verl_rows(tasks, tmp_path / "train.parquet")
    options = omegaconf.OmegaConf.create({"cache_dir": str(tmp_path / "cache"), "filter_overlong_prompts": False})
    rows = dataset.RLHFDataset([str(tmp_path / "train.parquet")], byte_tokenizer(), options)
    for number, task in enumerate(tasks):
        row = rows[number]
        assert row["raw_prompt"][-1] == {"role": "user", "content": task.prompt}
        assert row["data_source"] == "multiplication"
        assert row["reward_model"] == {"style": "rule", "ground_truth": task.answer}
        assert Task.from_dict(json.loads(row["extra_info"]["task"])) == task

"""The model card of a run's policy, from its run folder: figures, data, how to run it with its tools."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from midthought.config import read_yaml
from midthought.report.run_folder import flat_keys
from midthought.report.run_record import RunRecord, read_run
from midthought.trainer.prompt_record import NATIVE, PromptRecord

LICENSE = "unknown"
"""Metadata of a card whose license nobody has filled in."""
_WHEN = re.compile(r"(before|after|arms\.[^.]+)\.(.+)")


def model_card(run: Path, name: str) -> str:
    """Returns the text of the card (`README.md`) with Hugging Face's metadata. `name`: of the model, such as `OWNER/NAME`.

    Raises CheckpointError if the run cannot be read. Of a path in the settings only the last part is named.
    """
    from huggingface_hub import ModelCardData

    record = read_run(run)
    settings = flat_keys(read_yaml(run / "config.yaml")) if record.config is not None else {}
    prompts = PromptRecord.read(run) or PromptRecord()
    base = str(settings.get("model.local_path") or "")
    algorithm = str(settings.get("training.algorithm") or settings.get("training.adv_estimator") or "")
    tags = ["midthought", "reinforcement-learning", "tool-use", *([algorithm] if algorithm else [])]
    metadata: dict[str, Any] = {"license": LICENSE, "library_name": "transformers", "pipeline_tag": "text-generation"}
    if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).exists():
        metadata["base_model"] = base
    head = ModelCardData(**metadata, tags=tags).to_yaml()
    parts = [
        f"---\n{head}\n---\n\n# {_line(name.rpartition('/')[2])}",
        f"{_origin(base)} {_trained(record, prompts, algorithm)}",
        _with_tools(name, prompts),
        _with_transformers(name, settings.get("inference.max_tokens")),
        "## Data\n\nDescribe the data here.",
        "## Figures\n\n" + _figures(record),
        "## License\n\nNot filled in: choose a license that the base model and the data permit, write it here, and set `license` "
        "in the metadata above.",
    ]
    return "\n\n".join(parts) + "\n"


def _origin(base: str) -> str:
    if not base:
        return "A small language model that was created with random weights."
    return f"A language model that was trained from `{_line(Path(base).name if Path(base).is_absolute() else base)}`."


def _trained(record: RunRecord, prompts: PromptRecord, algorithm: str) -> str:
    num_iters = len(record.metrics.get("ppo", {}).get("reward/mean", ()))
    num_steps = len(record.metrics.get("sft", {}).get("loss", ()))
    recipe = f", recipe `{_line(prompts.recipe)}`" if prompts.recipe else ""
    return (
        f"Supervised steps: {num_steps}; reinforcement learning ({_line(algorithm)}): {num_iters} iterations, with "
        f"[midthought](https://github.com/midthought/midthought) {version('midthought')}{recipe}."
    )


def _with_tools(name: str, prompts: PromptRecord) -> str:
    if not prompts.tools:
        return "## Tools\n\nNone."
    written = (
        "the format of its chat template" if prompts.call_format == NATIVE else f"the format `{prompts.call_format}`"
    )
    functions = [tool["definition"]["function"] for tool in prompts.tools]
    lines = [f"- `{_line(each['name'])}`: {_line(each.get('description', ''))}" for each in functions]
    sources = ("" if prompts.recipe else str(tool.get("source") or "") for tool in prompts.tools)
    flags = " ".join(f"--tools {source or 'MODULE:NAME'}" for source in sources)
    commands = [
        "# from the run folder: in a terminal, or as an OpenAI-compatible endpoint",
        "midthought chat RUN",
        "midthought serve RUN",
        "# from the published files, with your own tools of these names",
        f"hf download {name} --local-dir MODEL",
        f"midthought chat MODEL --call-format {prompts.call_format or 'NAME'} {flags}",
    ]
    if prompts.system_prompt:
        commands[-1] += f" --system {shlex.quote(prompts.system_prompt)}"
    return "\n\n".join(
        [
            "## Tools",
            f"It calls these tools while it thinks, in {written}. The program that samples runs the calls and inserts the "
            "results.",
            "\n".join(lines),
            "```sh\n" + "\n".join(commands) + "\n```",
        ]
    )


def _with_transformers(name: str, max_tokens: int | None) -> str:
    code = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"name = {json.dumps(name)}\n"
        "tokenizer, model = AutoTokenizer.from_pretrained(name), AutoModelForCausalLM.from_pretrained(name)\n"
        'messages = [{"role": "user", "content": "…"}]\n'
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")\n'
        f"print(tokenizer.decode(model.generate(**inputs, max_new_tokens={max_tokens})[0]))"
    )
    return f"## Without tools\n\n```python\n{code}\n```\n\nCalls are then only text: nothing runs them."


def _figures(record: RunRecord) -> str:
    """Returns the shares of right answers of every arm, before and after, else the last values of the summary."""
    found: dict[str, dict[str, float]] = {}
    numbers = {key: value for key, value in record.summary.items() if isinstance(value, int | float)}
    for key, value in numbers.items():
        match = _WHEN.fullmatch(key)
        if match and match[2].endswith(("exact_match", "call_rate_needed", "call_rate_needless")):
            found.setdefault(match[2], {})[match[1]] = value
    if found:
        columns = list(dict.fromkeys(when for row in found.values() for when in row))
        rows = [[metric, *(_interval(record, when, metric, row) for when in columns)] for metric, row in found.items()]
        note = "In brackets: 95 % Wilson interval. `before` and `after` reinforcement learning; `arms.…`: control runs."
        return f"{_table(('measure', *columns), rows)}\n\n{note}"
    names = ("reward/", "validation/reward/", "validation/exact_match", "tools/")
    shown = [(key, f"{value:.4g}") for key, value in numbers.items() if key.startswith(names)]
    return _table(("measure", "value"), shown) if shown else "None yet."


def _interval(record: RunRecord, when: str, metric: str, row: Mapping[str, float]) -> str:
    if when not in row:
        return "–"
    low, high = (record.summary.get(f"{when}.{metric}.{end}") for end in ("low", "high"))
    return f"{row[when]:.3f}" + (f" ({low:.3f}–{high:.3f})" if low is not None and high is not None else "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_line(cell) for cell in line)} |" for line in lines)


def _line(text: object) -> str:
    """Returns the text on one line, without a meaning in Markdown tables and HTML."""
    return " ".join(str(text).split()).replace("|", r"\|").replace("<", "&lt;")

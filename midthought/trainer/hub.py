"""The policy of a run as a repository of the Hugging Face hub has it: its files with a model card (`model_card.md`)."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from midthought.config import read_yaml
from midthought.errors import CheckpointError
from midthought.files.output_folder import MANIFEST, MARK, replaced
from midthought.models.pretrained import policy_folder, require_intact_model
from midthought.report.run_folder import flat_keys, require_intact_run
from midthought.report.run_record import last_iteration, read_run
from midthought.trainer.prompt_record import PromptRecord, run_folder_of

CARD = "README.md"
_WHEN = re.compile(r"(before|after|arms\.[^.]+)\.(.+)")


def save_for_hub(run: str | Path, folder: str | Path, *, name: str = "") -> Path:
    """Writes the policy of a run, with its model card, to a folder that any Hugging Face tool loads, and that
    `hf upload OWNER/NAME FOLDER` publishes. Returns the folder.

    A card that the folder has already is kept: it may have been edited.

    `name`: of the repository; by default the folder's. Raises `CheckpointError` if `run` is no run folder, `ModelPathError` if it
    has no policy or a file is not as it was written, `OutputPathError` if `folder` holds files that were not written here.
    """
    files, card = _files(Path(run), name or Path(folder).name)
    before = Path(folder) / CARD
    with replaced(folder, "model", editable=(CARD,)) as target:
        for relative, file in files.items():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)
        (target / ".gitignore").write_text(f"{MARK}\n{MANIFEST}\n", encoding="utf-8")  # the hub obeys it, too
        (target / CARD).write_text(before.read_text("utf-8") if before.is_file() else card, encoding="utf-8")
    return Path(folder)


def _files(run: Path, name: str) -> tuple[Mapping[str, Path], str]:
    """Returns the files of the policy by their names in the repository, and the card."""
    folder, found = policy_folder(run), run_folder_of(run)
    if found is None:
        raise CheckpointError(f"{run} is not in a run folder, from which the model card is written; give the run")
    require_intact_run(found)
    require_intact_model(folder)
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (MANIFEST, MARK, CARD))
    return {path.relative_to(folder).as_posix(): path for path in paths}, model_card(found, name)


def model_card(run: Path, name: str) -> str:
    """Returns the text of the card with Hugging Face's metadata. Of a path in the settings only the last part is named."""
    from huggingface_hub import ModelCardData
    from jinja2 import Environment, StrictUndefined

    record = read_run(run)
    settings = flat_keys(read_yaml(run / "config.yaml")) if record.config is not None else {}
    base = str(settings.get("model.local_path") or "")
    algorithm = str(settings.get("training.algorithm") or settings.get("training.adv_estimator") or "")
    is_on_hub = bool(re.fullmatch(r"[\w.-]+/[\w.-]+", base)) and not Path(base).exists()
    metadata = ModelCardData(
        license="unknown",
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if is_on_hub else None,
        tags=["midthought", "reinforcement-learning", "tool-use", *filter(None, [algorithm])],
    )
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    environment.filters |= {"line": _line, "quoted": shlex.quote}
    template = environment.from_string(resources.files(__package__).joinpath("model_card.md").read_text("utf-8"))
    card = template.render(
        metadata=metadata.to_yaml(),
        name=name,
        base=Path(base).name if Path(base).is_absolute() else base,
        algorithm=algorithm,
        num_steps=len(record.metrics.get("sft", {}).get("loss", ())),
        num_iters=last_iteration(record.metrics),
        version=version("midthought"),
        prompts=PromptRecord.read(run) or PromptRecord(),
        max_tokens=settings.get("inference.max_tokens"),
        figures=_figures(record.summary),
    )
    return f"{card}\n"


def _figures(summary: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """Returns the rows of a table: the shares of right answers of every arm, before and after, else the last values."""
    numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    found: dict[str, dict[str, str]] = {}
    for key, value in numbers.items():
        match = _WHEN.fullmatch(key)
        if match and match[2].endswith(("exact_match", "call_rate_needed", "call_rate_needless")):
            ends = [f"{numbers[f'{key}.{end}']:.3f}" for end in ("low", "high") if f"{key}.{end}" in numbers]
            interval = f" ({'–'.join(ends)})" if ends else ""
            found.setdefault(match[2], {})[match[1]] = f"{value:.3f}{interval}"
    if found:
        columns = dict.fromkeys(when for row in found.values() for when in row)
        rows = [[metric, *(row.get(when, "–") for when in columns)] for metric, row in found.items()]
        return [["measure", *columns], *rows]
    names = ("reward/", "validation/reward/", "validation/exact_match")
    shown = [[key, f"{value:.4g}"] for key, value in numbers.items() if key.startswith(names)]
    return [["measure", "value"], *shown] if shown else []


def _line(text: object) -> str:
    """Returns the text on one line, without a meaning in Markdown tables and HTML."""
    return " ".join(str(text).split()).replace("|", r"\|").replace("<", "&lt;")

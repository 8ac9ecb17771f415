"""Publishes the policy of a run: its files with a model card, in a folder or on the Hugging Face hub."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from midthought.errors import CheckpointError, SettingsError
from midthought.files.manifest import MANIFEST
from midthought.files.output_folder import MARK, replaced
from midthought.models.pretrained import policy_folder, require_intact_model
from midthought.report.run_folder import require_intact_run
from midthought.trainer.model_card import model_card
from midthought.trainer.prompt_record import run_folder_of

CARD = "README.md"
_CLIENTS = ("httpx", "httpx2")
"""Packages whose errors huggingface_hub passes on if there is no connection; it depends on one of them."""
_OURS = (MANIFEST, MARK)


def save_for_hub(run: str | Path, folder: str | Path, *, name: str = "") -> Path:
    """Writes the policy of a run, with its model card, to a folder that any Hugging Face tool loads. Returns the folder.

    Raises as `push_to_hub`, and `OutputPathError` if `folder` holds files that were not written here.
    """
    files, card = _files(Path(run), name or Path(folder).name)
    with replaced(folder, "model") as target:
        for relative, file in files.items():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)
        (target / CARD).write_text(card, encoding="utf-8")
    return Path(folder)


def push_to_hub(run: str | Path, repo: str, *, private: bool = False) -> str:
    """Uploads the policy of a run, with its model card, to the repository `OWNER/NAME` in one commit. Returns its address.

    The repository is created if there is none. A card that is there already is kept: it may have been edited. The token is
    that of `hf auth login` or `HF_TOKEN`. Raises `CheckpointError` if `run` is no run folder, `ModelPathError` if it has no
    policy or a file is not as it was written, `SettingsError` if the hub refuses the name or the token or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    files, card = _files(Path(run), repo)
    api = HfApi(library_name="midthought")
    try:
        created = api.create_repo(repo, private=private, exist_ok=True)
        added = [CommitOperationAdd(relative, str(file)) for relative, file in files.items()]
        if not api.file_exists(created.repo_id, CARD):
            added.append(CommitOperationAdd(CARD, card.encode()))
        api.create_commit(created.repo_id, added, commit_message="Upload a policy trained with midthought")
    except (HFValidationError, LocalTokenNotFoundError) as error:
        raise SettingsError(f"{repo!r}: {_reason(error)}; write OWNER/NAME, and log in with `hf auth login`") from None
    except HfHubHTTPError as error:
        raise SettingsError(f"the hub refuses {repo!r}: {_reason(error)}; log in with `hf auth login`") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        raise SettingsError(
            f"the hub at {api.endpoint} cannot be reached ({_reason(error)}); try again later"
        ) from None
    return str(created)


def _files(run: Path, name: str) -> tuple[Mapping[str, Path], str]:
    """Returns the files of the policy by their names in the repository, and the card."""
    folder, found = policy_folder(run), run_folder_of(run)
    if found is None:
        raise CheckpointError(f"{run} is not in a run folder, from which the model card is written; give the run")
    require_intact_run(found)
    require_intact_model(folder)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (*_OURS, CARD)
    }
    return files, model_card(found, name)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

"""Writes a folder that trains a policy on a recipe's demonstrations with verl's SFT trainer. Does not import verl."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from midthought.cluster.verl.bundle import (
    SCRIPT,
    VERL_VERSION,
    compose,
    has_verl,
    hydra_override,
    script,
    shell_override,
    trained_policy,
    write_folder,
)
from midthought.cluster.verl.job import VerlSftJob
from midthought.cluster.verl.overrides import CHECKPOINT_CONTENTS, BundlePath, template_arguments, with_overrides
from midthought.cluster.verl.settings import VerlConfig, adam_betas
from midthought.errors import SettingsError

SFT_CONFIG = "sft_trainer_engine"
"""Name of the SFT trainer's configuration in verl."""


def write_sft_bundle(job: VerlSftJob, verl: VerlConfig, folder: Path) -> list[Path]:
    """Writes the bundle into `folder`, which must be new or empty. Returns the files written.

    Raises `SettingsError` if the folder is not empty, sizes are not multiples of each other, or (if verl is installed) a key is
    not in its configuration; `DataError` if there is no conversation. Then nothing is written.
    """
    overrides = sft_overrides(job, verl)
    if has_verl():
        compose([hydra_override(key, value) for key, value in overrides.items()], SFT_CONFIG)
    words = [shell_override(key, value) for key, value in overrides.items()]
    where = f"{_NODES}\n{trained_policy(overrides, 'checkpoints/global_step_N')}"
    files = {
        "config.yaml": job.config.to_yaml(),
        "requirements.txt": f"verl[fsdp]=={VERL_VERSION}\n",
        SCRIPT: script(
            job.recipe, verl, f"torch.distributed.run {_processes(verl)} -m verl.trainer.sft_trainer", where, words
        ),
    }
    rows = [{"messages": [dict(message) for message in said]} for said in job.conversations]
    write_folder(folder, {"train": rows}, files)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def sft_overrides(job: VerlSftJob, verl: VerlConfig) -> dict[str, Any]:
    """Returns verl's keys with their values; `verl.sft_trainer.overrides` come last and replace ours.

    Raises `SettingsError` if the conversations do not fill a step, or a step cannot be split over the GPUs.
    """
    _require_supported(job, verl)
    model, training, sft = job.config.model, job.config.training, verl.sft_trainer
    steps_per_epoch = len(job.conversations) // sft.batch_size  # verl drops an incomplete last batch
    values: dict[str, Any] = {
        "model.path": model.local_path,
        "data.train_files": BundlePath("data/train.parquet"),
        "data.train_batch_size": sft.batch_size,
        "data.max_length": sft.max_length,
        "data.max_token_len_per_gpu": max(verl.max_tokens_per_gpu or 0, sft.max_length),
        "engine.param_offload": verl.offload,
        "engine.optimizer_offload": verl.offload,
        "engine.seed": training.seed,
        "optim.lr": job.learning_rate,
        "optim.lr_warmup_steps": job.warmup_steps,
        "optim.lr_scheduler_type": "cosine",
        "optim.weight_decay": training.weight_decay,
        "optim.betas": adam_betas(training),
        "optim.clip_grad": training.max_grad_norm,
        "trainer.total_training_steps": job.num_steps,
        "trainer.total_epochs": math.ceil(job.num_steps / steps_per_epoch),
        "trainer.save_freq": 10 * job.config.checkpoint.save_interval,
        "trainer.max_ckpt_to_keep": job.config.checkpoint.keep_last_n,
        "trainer.nnodes": verl.num_nodes,
        "trainer.n_gpus_per_node": verl.gpus_per_node,
        "trainer.project_name": job.config.checkpoint.tracker_project,
        "trainer.experiment_name": f"{job.recipe}-sft",
        "trainer.logger": list(verl.loggers),
        "trainer.seed": training.seed,
        "trainer.default_local_dir": BundlePath("checkpoints"),
    }
    if model.adapter_rank:
        values |= {"model.lora_rank": model.adapter_rank, "model.lora_alpha": model.lora_alpha}
    else:
        values["checkpoint.save_contents"] = list(CHECKPOINT_CONTENTS)
    return with_overrides(values | template_arguments(model), sft.overrides)


def _require_supported(job: VerlSftJob, verl: VerlConfig) -> None:
    num_gpus, batch_size = verl.num_nodes * verl.gpus_per_node, verl.sft_trainer.batch_size
    wrong = (
        (not job.config.model.local_path, "model.local_path is empty: verl trains an existing model; set its path"),
        (job.num_steps < 1, f"sft.num_steps={job.num_steps}: there is nothing to train"),
        (len(job.conversations) < batch_size,
         f"{len(job.conversations)} conversations do not fill one step of {batch_size}; lower verl.sft_trainer.batch_size"),
        (batch_size % num_gpus != 0, f"verl.sft_trainer.batch_size={batch_size} is not a multiple of the {num_gpus} GPUs"),
    )  # fmt: skip
    for is_wrong, words in wrong:
        if is_wrong:
            raise SettingsError(words)


_NODES = """\
# On several nodes, run it on each, with RENDEZVOUS=HOST:PORT of the first one; all must see this folder under one path."""


def _processes(verl: VerlConfig) -> str:
    """Returns the arguments of torch's launcher."""
    if verl.num_nodes == 1:
        return f"--standalone --nproc-per-node={verl.gpus_per_node}"
    return (
        f"--nnodes={verl.num_nodes} --nproc-per-node={verl.gpus_per_node} "
        '--rdzv-id=midthought --rdzv-backend=c10d --rdzv-endpoint="$RENDEZVOUS"'
    )

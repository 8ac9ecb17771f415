"""What the tests with a really installed verl share: its configuration, and its agent-loop worker over one of our engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.experimental.reward_loop.reward_loop import migrate_legacy_reward_impl
from verl.protocol import DataProto
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.dataset.rl_dataset import collate_fn as collate

from midthought.cluster.verl.bundle import compose
from midthought.cluster.verl.overrides import BundlePath
from midthought.types import Trajectory

LOOK = {"type": "native", "tool": "worlds:Look"}
TOOLS = {"tools": [{"class_name": "midthought.cluster.verl.agent_loop.VerlTool", "config": LOOK}]}


def configured(folder: Path, model_path: Path, options: dict[str, Any], *more: str, tools: Any = TOOLS) -> Any:
    """verl's configuration for our agent loop with these options."""
    loop = {
        "name": "midthought",
        "_target_": "midthought.cluster.verl.agent_loop.MidthoughtAgentLoop",
        "options": options,
    }
    (folder / "loop.yaml").write_text(yaml.safe_dump([loop]))
    (folder / "tools.yaml").write_text(yaml.safe_dump(tools))
    rollout = "actor_rollout_ref.rollout"
    return compose(
        [
            f"actor_rollout_ref.model.path={model_path}",
            f"{rollout}.name=vllm",
            "data.max_prompt_length=128",
            "data.max_response_length=160",
            f"{rollout}.agent.agent_loop_config_path={folder / 'loop.yaml'}",
            f"{rollout}.multi_turn.tool_config_path={folder / 'tools.yaml'}",
            *more,
        ]
    )


class Recording(AgentLoopWorker):
    """verl's worker, with the agent loops' outputs kept in the order of the rows."""

    async def _agent_loop_postprocess(self, output: AgentLoopOutput, validate: bool, **kwargs: Any) -> Any:
        self.outputs[int(kwargs["index"])] = output
        return await super()._agent_loop_postprocess(output, validate, **kwargs)


def generate(config: Any, manager: Any, batch: DataProto) -> tuple[list[AgentLoopOutput], DataProto]:
    """(each row's AgentLoopOutput, the padded batch that verl makes of them)."""
    worker = Recording(config, manager)
    worker.outputs = {}
    padded = asyncio.run(worker.generate_sequences(batch))
    return [worker.outputs[index] for index in sorted(worker.outputs)], padded


def batch_of(rows: Sequence[dict[str, Any]]) -> DataProto:
    """Rows as verl's trainer hands them to its workers."""
    columns = {
        name: np.empty(len(rows), dtype=object)
        for name in ("raw_prompt", "agent_name", "data_source", "reward_model", "extra_info")
    }
    for place, row in enumerate(rows):
        for name, column in columns.items():
            column[place] = row["prompt"] if name == "raw_prompt" else row[name]
    index = np.array([row["extra_info"]["index"] for row in rows])
    return DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)}, non_tensors={**columns, "index": index}
    )


def dataset(config: Any, path: Path, tokenizer: Any) -> Any:
    """verl's own data set over a Parquet file of ours."""
    return RLHFDataset(data_files=str(path), tokenizer=tokenizer, config=config.data)


def loaded(config: Any, path: Path, tokenizer: Any) -> DataProto:
    """A Parquet file as verl's trainer reads it."""
    rows = dataset(config, path, tokenizer)
    return DataProto.from_single_dict(collate([rows[index] for index in range(len(rows))]))


def require_values(composed: Any, expected: Mapping[str, Any], bundle: Path) -> None:
    """verl's composed configuration has these values; paths are in the bundle."""
    for key, value in expected.items():
        found = OmegaConf.select(composed, key)
        want = f"{bundle}/{value}" if isinstance(value, BundlePath) else value
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == want, key


def require_equal(outputs: Sequence[AgentLoopOutput], expected: Sequence[Trajectory], tolerance: float) -> None:
    """verl's outputs hold our Trajectories' ids, masks and log-probabilities."""
    assert len(outputs) == len(expected)
    for output, trajectory in zip(outputs, expected, strict=True):
        start = trajectory.spans[0].end
        assert output.prompt_ids == trajectory.token_ids[:start]
        assert output.response_ids == trajectory.token_ids[start:]
        assert output.response_mask == [int(flag) for flag in trajectory.loss_mask[start:]]
        ours = [
            logprob if flag else 0.0
            for logprob, flag in zip(trajectory.sampled_logprobs, trajectory.loss_mask, strict=True)
        ]
        assert output.response_logprobs == pytest.approx(ours[start:], abs=tolerance)
        assert output.num_turns == len(trajectory.spans)


def scored(
    config: Any, tokenizer: Any, batch: DataProto, outputs: Sequence[AgentLoopOutput], padded: DataProto
) -> Iterator[dict[str, Any]]:
    """What verl's reward manager says of each row: `reward_score`, `reward_extra_info`."""
    manager = load_reward_manager(migrate_legacy_reward_impl(config), tokenizer)
    for row, output in enumerate(outputs):
        data = padded[row : row + 1]
        data.non_tensor_batch["tool_extra_fields"] = np.array([output.extra_fields], dtype=object)
        data.non_tensor_batch |= {
            name: batch.non_tensor_batch[name][row : row + 1] for name in ("data_source", "reward_model", "extra_info")
        }
        yield manager.loop.run_until_complete(manager.run_single(data))

"""Rollout servers on a CPU behind verl's interface, in place of its vLLM: VERL_USE_EXTERNAL_MODULES names this module.

Only for tests. A tiny model does not call tools, so a policy (`cpu_policies`) may dictate what a request writes; what it does not
dictate is sampled. The log-probabilities are the model's in both cases, with the weights that verl's trainer sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "cpu_server_{}"


class CpuServer:
    """Serves token ids with a transformers model. A Ray actor."""

    def __init__(self, model_path: str) -> None:
        from cpu_policies import Policy
        from transformers import AutoModelForCausalLM

        from midthought.models.pretrained import load_tokenizer
        from midthought.tokenization import Renderer

        torch.manual_seed(0)
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self._renderer = Renderer(load_tokenizer(model_path))
        self._policy = Policy(self._renderer)
        self._step = 0
        self._num_updates = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **more: Any
    ) -> TokenOutput:
        stops = {*sampling_params["stop_token_ids"], *self._renderer.eos_token_ids}
        dictated = self._policy.write(prompt_ids)
        if dictated is None:
            token_ids = self._sample(prompt_ids, min(8, sampling_params["max_tokens"]), sampling_params, stops)
        else:
            token_ids = dictated[: sampling_params["max_tokens"]]
        logprobs = torch.log_softmax(self._logits([*prompt_ids, *token_ids]) / sampling_params["temperature"], -1)
        said = logprobs[len(prompt_ids) - 1 : -1].gather(1, torch.tensor(token_ids)[:, None])[:, 0]
        return TokenOutput(
            token_ids=token_ids,
            log_probs=said.tolist() if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self._step},
        )

    def _sample(
        self, prompt_ids: Sequence[int], num_tokens: int, sampling_params: dict[str, Any], stops: set[int]
    ) -> list[int]:
        written: list[int] = []
        while len(written) < num_tokens and not (written and written[-1] in stops):
            logits = self._logits([*prompt_ids, *written])[-1] / sampling_params["temperature"]
            written.append(int(torch.multinomial(torch.softmax(logits, -1), 1)))
        return written

    @torch.no_grad()
    def _logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        return self._model(torch.tensor([list(token_ids)])).logits[0].float()

    async def update_weights(self, weights: dict[str, torch.Tensor], step: int | None) -> None:
        self._model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=True)
        self._step = self._step if step is None else step
        self._num_updates += 1

    async def do_nothing(self, *args: Any, **kwargs: Any) -> None:
        """A CPU has no memory to release, and no request outlives a step."""

    wake_up = sleep = clear_kv_cache = abort_all_requests = resume_generation = do_nothing
    release_kv_cache = resume_kv_cache = do_nothing


class CpuReplica(RolloutReplica):
    """One server per replica."""

    async def launch_servers(self) -> None:
        actor = ray.remote(CpuServer).options(name=NAME.format(self.replica_rank), num_cpus=0)
        self.servers = [actor.remote(self.model_config.path)]
        await self.servers[0].do_nothing.remote()
        self._server_handle, self._server_address = self.servers[0], NAME.format(self.replica_rank)


class CpuAdapter(base.BaseRollout):
    """The trainer's side: sends the weights to the server of its replica."""

    async def resume(self, tags: list[str]) -> None:
        """A CPU has no memory to release."""

    async def release(self) -> None:
        """A CPU has no memory to release."""

    async def update_weights(self, weights: Any, global_steps: int | None = None, **kwargs: Any) -> None:
        server = ray.get_actor(NAME.format(os.environ["RANK"]))
        await server.update_weights.remote({name: tensor.detach().clone() for name, tensor in weights}, global_steps)


RolloutReplicaRegistry.register("vllm", lambda: CpuReplica)
base._ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.{CpuAdapter.__name__}"

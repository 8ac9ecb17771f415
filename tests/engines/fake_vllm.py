"""What midthought uses of the `vllm` package, over a transformers model on the CPU, with a log of the calls.

It shows the order of calls and what happens if vLLM misbehaves; sleep mode needs a GPU in the real one. What the real
one computes is tested in tests/rollout/test_vllm_in_process.py.
"""

import asyncio
import importlib.machinery
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from midthought.engines.shared_tensors import WeightReceiver


@dataclass
class AsyncEngineArgs:
    model: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    logprobs_mode: str
    load_format: str
    worker_extension_cls: str
    trust_remote_code: bool
    skip_tokenizer_init: bool
    generation_config: str
    enforce_eager: bool
    enable_chunked_prefill: bool | None
    disable_log_stats: bool
    enable_sleep_mode: bool = False
    gpu_memory_utilization: float = 0.9
    enable_lora: bool = False
    max_loras: int = 1
    max_lora_rank: int = 16


class RequestOutputKind(Enum):
    DELTA = 1


class SamplingParams(SimpleNamespace):
    """Any parameters; `AsyncLLM` reads some of them."""


@dataclass(frozen=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


class Worker(WeightReceiver):
    def __init__(self, arguments: AsyncEngineArgs) -> None:
        assert arguments.worker_extension_cls == "midthought.engines.shared_tensors.WeightReceiver"
        config = AutoConfig.from_pretrained(arguments.model)
        assert not config.tie_word_embeddings
        self.model = AutoModelForCausalLM.from_config(config).eval()
        self.lost: set[str] = set()
        """Tensors that are received and not used."""

    @torch.no_grad()
    def reload_weights(self, *, weights_iterator: Any, is_checkpoint_format: bool) -> None:
        assert is_checkpoint_format
        own = dict(self.model.named_parameters())
        for name, tensor in weights_iterator:
            if name not in self.lost:
                own[name].copy_(tensor)


class AsyncLLM:
    """The engine. `log` has its calls in order."""

    def __init__(self, arguments: AsyncEngineArgs) -> None:
        self.arguments = arguments
        self.worker = Worker(arguments)
        self.log: list[Any] = []
        self.errored = False
        self.asleep: set[str] = set()
        self.is_paused = False
        self.num_running = 0
        self.adapters: dict[int, Any] = {}
        self.refuses_updates = False
        self.model_config = SimpleNamespace(
            max_model_len=arguments.max_model_len, get_vocab_size=lambda: self.worker.model.config.vocab_size
        )

    @classmethod
    def from_engine_args(cls, arguments: AsyncEngineArgs) -> Self:
        made.append(cls(arguments))
        return made[-1]

    async def generate(
        self, prompt: Any, params: SamplingParams, name: str, lora_request: LoRARequest | None = None
    ) -> AsyncIterator[Any]:
        assert not self.asleep and not self.is_paused
        self.num_running += 1
        try:
            model = self.worker.model if lora_request is None else self.adapters[lora_request.lora_int_id]
            token_ids = list(prompt["prompt_token_ids"])
            generator = torch.Generator().manual_seed(params.seed)
            for number in range(params.max_tokens):
                with torch.no_grad():
                    logits = model(torch.tensor([token_ids])).logits[0, -1].float()
                logprobs = (logits / (params.temperature or 1.0)).log_softmax(-1)
                token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
                token_ids.append(token)
                is_last = number + 1 == params.max_tokens
                logprob = {token: SimpleNamespace(logprob=float(logprobs[token]))}
                reason = "length" if is_last else "stop" if token in params.stop_token_ids else None
                completion = SimpleNamespace(token_ids=[token], logprobs=[logprob], finish_reason=reason)
                yield SimpleNamespace(outputs=[completion])
                await asyncio.sleep(0.001)
        finally:
            self.num_running -= 1

    async def abort(self, name: str) -> None:
        pass

    async def pause_generation(self, *, mode: str) -> None:
        assert mode == "abort" and self.num_running == 0
        self.is_paused = True
        self.log.append("pause")

    async def resume_generation(self) -> None:
        self.is_paused = False
        self.log.append("resume")

    async def reset_prefix_cache(self) -> bool:
        assert not self.asleep
        self.log.append("reset cache")
        return self.num_running == 0

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        assert "weights" not in self.asleep
        self.log.append("load")
        if self.refuses_updates:
            raise RuntimeError("no room")
        getattr(self.worker, method)(*args)

    async def add_lora(self, request: LoRARequest) -> bool:
        from peft import PeftModel

        assert self.arguments.enable_lora and not self.asleep and Path(request.lora_path).is_dir()
        self.log.append("add adapter")
        base = AutoModelForCausalLM.from_config(self.worker.model.config)
        base.load_state_dict(self.worker.model.state_dict())
        self.adapters[request.lora_int_id] = PeftModel.from_pretrained(base, request.lora_path).eval()
        return True

    async def remove_lora(self, number: int) -> bool:
        self.log.append("remove adapter")
        return self.adapters.pop(number, None) is not None

    async def sleep(self, *, level: int) -> None:
        assert self.arguments.enable_sleep_mode and self.num_running == 0
        self.log.append(f"sleep {level}")
        self.asleep = {"weights", "kv_cache"}
        self.adapters.clear()
        if level == 2:
            with torch.no_grad():
                for weight in self.worker.model.parameters():
                    weight.fill_(torch.nan)

    async def wake_up(self, tags: list[str]) -> None:
        self.log.append(f"wake {tags[0]}")
        self.asleep -= set(tags)

    def shutdown(self, timeout: float) -> None:
        self.log.append("shutdown")


made: list[AsyncLLM] = []
"""The engines that were created since `install`."""


def install(monkeypatch: pytest.MonkeyPatch) -> list[AsyncLLM]:
    """Makes this the `vllm` package. Returns the list of the engines that will be created."""
    made.clear()
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.sampling_params": {"RequestOutputKind": RequestOutputKind},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": AsyncEngineArgs},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return made

"""Train language models to use tools while they reason.

Every public name, and nothing else. Each is loaded when it is first asked for, so `import midthought` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES_OF = {
    "config": "ConfigStore ModelConfig InferenceConfig RewardConfig EnvironmentConfig TrainingConfig RayConfig CheckpointConfig "
    "create_default_config merge_configs",
    "errors": "MidthoughtError UserError SettingsError RewardError EpisodeError DataError TrainerClosedError",
    "types": "Task Trajectory RolloutData Reward StopReason ParsedAction ToolCall ToolEvent Turn",
    "data.tasks": "load_tasks",
    "tools.definition": "Tool ToolDefinition ToolParameter ToolOutput",
    "tools.function_tool": "tool",
    "tools.registry": "ToolRegistry",
    "tools.schedule": "Toolbox",
    "tools.parsers": "ActionParser JSONActionParser ReActActionParser FunctionCallingParser HermesParser InThoughtParser",
    "tools.notations": "Notation",
    "tools.notations.find": "find_notation register_notation",
    "tools.turns": "MultiTurnManager",
    "tools.builtin.calculate": "CalculateTool",
    "tools.builtin.environment_step": "EnvironmentStepTool",
    "tools.builtin.python": "PythonTool",
    "tools.builtin.query": "QueryTool",
    "tools.mcp": "mcp_tools",
    "algo.credit": "advantage_estimator",
    "algo.advantages": "AdvantageEstimator compute_advantage compute_gae_advantage_return compute_grpo_advantage",
    "algo.losses": "compute_policy_loss compute_value_loss policy_loss",
    "algo.kl": "KLController apply_kl_penalty kl_divergence",
    "env.environment": "BaseEnvironment",
    "env.game": "SimpleGameEnvironment",
    "env.rewards": "combine_rewards",
    "env.judge": "Judge",
    "inference.generation": "BaseInferenceEngine GenerationOutput",
    "inference.engines": "LocalInferenceEngine ScriptedInferenceEngine create_inference_engine",
    "inference.vllm": "VLLMInferenceEngine",
    "inference.sglang": "SGLangInferenceEngine",
    "inference.multi_turn": "MultiTurnInferenceEngine",
    "inference.batch_manager": "BatchInferenceManager",
    "learning.model": "PolicyHead PolicyValueModel ValueHead",
    "learning.batch": "PPOBatch",
    "trainer.ppo_trainer": "RayPPOTrainer TrainerCallback",
}
_ROOM_OF = {name: room for room, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'midthought' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"midthought.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

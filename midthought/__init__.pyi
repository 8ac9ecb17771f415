"""Every public name, room by room. What stands here is exactly what `midthought` exports: `lazy_loader` reads it."""
# ruff: noqa: I001  (the rooms stand in the order of the house)

from .config import (
    ConfigStore as ConfigStore,
    ModelConfig as ModelConfig,
    InferenceConfig as InferenceConfig,
    RewardConfig as RewardConfig,
    EnvironmentConfig as EnvironmentConfig,
    TrainingConfig as TrainingConfig,
    RayConfig as RayConfig,
    CheckpointConfig as CheckpointConfig,
    create_default_config as create_default_config,
    merge_configs as merge_configs,
)
from .errors import (
    MidthoughtError as MidthoughtError,
    UserError as UserError,
    SettingsError as SettingsError,
    RewardError as RewardError,
    EpisodeError as EpisodeError,
    DataError as DataError,
    TrainingStoppedError as TrainingStoppedError,
    TrainerClosedError as TrainerClosedError,
)
from .types import (
    Task as Task,
    Trajectory as Trajectory,
    RolloutData as RolloutData,
    Reward as Reward,
    StopReason as StopReason,
    ParsedAction as ParsedAction,
    ToolCall as ToolCall,
    ToolEvent as ToolEvent,
    Turn as Turn,
)
from .data.problem_sets import load_problems as load_problems
from .data.tasks import load_tasks as load_tasks
from .tools.definition import (
    Tool as Tool,
    ToolDefinition as ToolDefinition,
    ToolEpisode as ToolEpisode,
    ToolParameter as ToolParameter,
    ToolOutput as ToolOutput,
)
from .tools.function_tool import tool as tool
from .tools.registry import ToolRegistry as ToolRegistry
from .tools.executor import ToolExecutor as ToolExecutor
from .tools.call_formats import ActionParser as ActionParser, ToolCallFormat as ToolCallFormat
from .tools.parsers import (
    JSONActionParser as JSONActionParser,
    ReActActionParser as ReActActionParser,
    FunctionCallingParser as FunctionCallingParser,
    HermesParser as HermesParser,
    InThoughtParser as InThoughtParser,
    find_call_format as find_call_format,
)
from .tools.multi_turn import MultiTurnManager as MultiTurnManager
from .tools.builtin.calculate import CalculateTool as CalculateTool
from .tools.builtin.own_objects import EnvironmentStepTool as EnvironmentStepTool, QueryTool as QueryTool
from .tools.builtin.python import PythonTool as PythonTool
from .tools.mcp import mcp_tools as mcp_tools
from .algo.advantage_estimator import advantage_estimator as advantage_estimator
from .algo.advantages import (
    AdvantageEstimator as AdvantageEstimator,
    compute_advantage as compute_advantage,
    compute_gae_advantage_return as compute_gae_advantage_return,
    compute_grpo_advantage as compute_grpo_advantage,
)
from .algo.losses import compute_policy_loss as compute_policy_loss, compute_value_loss as compute_value_loss
from .algo.policy_losses import policy_loss as policy_loss
from .algo.shaping import (
    KLController as KLController,
    apply_kl_penalty as apply_kl_penalty,
    kl_divergence as kl_divergence,
)
from .env.environment import BaseEnvironment as BaseEnvironment
from .env.game import SimpleGameEnvironment as SimpleGameEnvironment
from .env.rewards import combine_rewards as combine_rewards
from .env.judge import Judge as Judge
from .engines.generation import BaseInferenceEngine as BaseInferenceEngine, GenerationOutput as GenerationOutput
from .engines.create import create_inference_engine as create_inference_engine
from .engines.inference_engines import (
    LocalInferenceEngine as LocalInferenceEngine,
    SGLangInferenceEngine as SGLangInferenceEngine,
    ScriptedInferenceEngine as ScriptedInferenceEngine,
    VLLMInferenceEngine as VLLMInferenceEngine,
)
from .rollout.multi_turn import MultiTurnInferenceEngine as MultiTurnInferenceEngine
from .rollout.trajectory_json import (
    load_trajectories as load_trajectories,
    save_trajectories as save_trajectories,
)
from .rollout.batch_manager import BatchInferenceManager as BatchInferenceManager
from .learning.model import PolicyHead as PolicyHead, PolicyValueModel as PolicyValueModel, ValueHead as ValueHead
from .learning.model import PPOBatch as PPOBatch
from .trainer.hub import save_for_hub as save_for_hub
from .trainer.trainer import (
    RayPPOTrainer as RayPPOTrainer,
    Trainer as Trainer,
    TrainerCallback as TrainerCallback,
)

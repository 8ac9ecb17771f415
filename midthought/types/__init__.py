"""Records that all packages share. The central one is `Trajectory`: the rollout writes it, the learner reads it.

Does not depend on tokenizers, models or tools: token ids are integers, log-probabilities are floats.
"""

from midthought.types.rollout import RolloutData as RolloutData
from midthought.types.rollout import Selection as Selection
from midthought.types.segment import Completion as Completion
from midthought.types.segment import Finish as Finish
from midthought.types.segment import Segment as Segment
from midthought.types.segment import Span as Span
from midthought.types.segment import SpanKind as SpanKind
from midthought.types.task import Reward as Reward
from midthought.types.task import Task as Task
from midthought.types.trajectory import Trajectory as Trajectory
from midthought.types.turn import ParsedAction as ParsedAction
from midthought.types.turn import StopReason as StopReason
from midthought.types.turn import ToolCall as ToolCall
from midthought.types.turn import ToolEvent as ToolEvent
from midthought.types.turn import ToolOutcome as ToolOutcome
from midthought.types.turn import Turn as Turn

"""Trackers: programs that also get the metrics of a run, each in one file, registered by name."""

from midthought.report.trackers.mlflow import MlflowTracker
from midthought.report.trackers.tensorboard import TensorBoardTracker
from midthought.report.trackers.tracker import (
    TRACKERS,
    LoginProblem,
    TrackedRun,
    Tracker,
    Trackers,
    find_tracker,
    tracker,
)
from midthought.report.trackers.trackio import TrackioTracker
from midthought.report.trackers.wandb import WandbTracker

__all__ = [
    "TRACKERS",
    "LoginProblem",
    "MlflowTracker",
    "TensorBoardTracker",
    "TrackedRun",
    "Tracker",
    "Trackers",
    "TrackioTracker",
    "WandbTracker",
    "find_tracker",
    "tracker",
]

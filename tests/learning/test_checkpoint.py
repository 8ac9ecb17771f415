"""Checkpoints: going on is bitwise what not stopping is; broken ones are named; nothing is left half-written."""

import json
import random

import numpy as np
import pytest
import torch
from training_settings import CRITICS, changed, training, weights_of
from transformers import Qwen3Config, Qwen3ForCausalLM

from midthought.errors import CheckpointError
from midthought.files.output_folder import write_manifest
from midthought.learning.batch import TokenBatch
from midthought.learning.checkpoint_folder import (
    keep_last,
    latest,
    load_checkpoint,
    save_checkpoint,
    step_path,
    step_paths,
)
from midthought.learning.iteration import improve
from midthought.learning.learner import Learner
from midthought.learning.model import frozen_copy

SETTINGS = training(
    learning_rate=1e-3, critic_learning_rate=1e-3, mini_batch_size=3, kl_coef=0.1, target_kl=0.1, warmup_steps=3
)


def fresh(make_policy, *, critic: str | None = "separate", seed: int = 0, settings=SETTINGS, **changes) -> Learner:
    policy = make_policy(seed=seed, **changes)
    return Learner(policy, CRITICS[critic](policy), frozen_copy(make_policy(seed=99, **changes)), settings)


def train(learner: Learner, make_trajectory, iterations: range) -> list[dict[str, float]]:
    """Iterations whose data comes from the global random states, as a sloppy user's would."""
    history = []
    for _ in iterations:
        seeds = [random.randrange(1000), int(np.random.randint(1000)), int(torch.randint(1000, ()))]
        batch = TokenBatch.from_trajectories([make_trajectory(seed + extra) for seed in seeds for extra in (0, 1)])
        history.append(improve(learner, batch))
    return history


def set_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("tied", [True, False])
def test_stopping_and_going_on_is_bitwise_the_same_as_not_stopping(
    critic, tied, make_policy, make_trajectory, tmp_path
):
    through = fresh(make_policy, critic=critic, tie_word_embeddings=tied)
    set_seeds(1)
    train(through, make_trajectory, range(2))
    save_checkpoint(tmp_path / "c", through, state={"iteration": 2})
    expected = train(through, make_trajectory, range(2))

    resumed = fresh(make_policy, critic=critic, tie_word_embeddings=tied, seed=7)
    set_seeds(123)
    checkpoint = load_checkpoint(tmp_path / "c")
    checkpoint.restore(resumed)
    assert checkpoint.state == {"iteration": 2}
    assert train(resumed, make_trajectory, range(2)) == expected
    assert resumed.num_steps == through.num_steps
    for name in ("policy", "critic"):
        ours, theirs = getattr(resumed, name).state_dict(), getattr(through, name).state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_model_of_a_class_that_transformers_does_not_know_is_restored(make_policy, make_trajectory, tmp_path):
    """As one whose code came with it: the checkpoint does not tell its class. No weight is rounded."""

    class OwnConfig(Qwen3Config):
        model_type = "midthought_test_unknown"

    class OwnModel(Qwen3ForCausalLM):
        config_class = OwnConfig

    def learner(seed: int) -> Learner:
        policy = make_policy(seed=seed)
        own = OwnModel(OwnConfig(**policy.config.to_dict() | {"model_type": OwnConfig.model_type})).eval()
        own.load_state_dict(policy.state_dict())
        own.bfloat16().model.norm.float().load_state_dict(policy.model.norm.state_dict())
        return Learner(own, CRITICS["separate"](own), frozen_copy(own), SETTINGS)

    saved, other = learner(0), learner(1)
    load_checkpoint(save_checkpoint(tmp_path / "c", saved)).restore(other)
    assert torch.equal(weights_of(other.policy), weights_of(saved.policy))


def test_nothing_but_safetensors_and_json_is_written(make_policy, tmp_path):
    save_checkpoint(tmp_path / "c", fresh(make_policy))
    assert {file.suffix for file in (tmp_path / "c").rglob("*") if file.is_file()} == {".safetensors", ".json"}


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_save_that_breaks_off_leaves_the_older_one_whole_and_nothing_else(error, make_policy, tmp_path, monkeypatch):
    learner = fresh(make_policy)
    save_checkpoint(tmp_path / "c", learner, state={"n": 1})

    def break_off(*_):
        raise error

    monkeypatch.setattr(torch, "get_rng_state", break_off)  # after the weights and the optimizer
    with pytest.raises(CheckpointError if isinstance(error, OSError) else KeyboardInterrupt):
        save_checkpoint(tmp_path / "c", learner, state={"n": 2})
    assert load_checkpoint(tmp_path / "c").state == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def damage_bytes(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda c: (c / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
        (lambda c: (c / "critic.safetensors").write_bytes(b""), "critic.safetensors has 0 bytes"),
        (lambda c: damage_bytes(c / "policy/model.safetensors"), "policy/model.safetensors is not as it was written"),
        (lambda c: (c / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda c: (c / "manifest.json").write_text('{"format": 9}'), "has format 9, this version reads 1"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_named_with_the_remedy(harm, message, make_policy, tmp_path):
    path = save_checkpoint(tmp_path / "c", fresh(make_policy))
    harm(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value) and "take an earlier checkpoint" in str(caught.value)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere is no checkpoint: it holds no manifest\.json"):
        load_checkpoint(tmp_path / "nowhere")


def test_another_model_or_critic_is_refused(make_policy, tmp_path):
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "c", fresh(make_policy)))
    with pytest.raises(CheckpointError, match="is of other models"):
        checkpoint.restore(fresh(make_policy, hidden_size=64))
    with pytest.raises(CheckpointError, match="holds a critic, unlike this run"):
        checkpoint.restore(fresh(make_policy, critic=None))


def finish(folder, *steps):
    for step in steps:
        step_path(folder, step).mkdir(parents=True)
        (step_path(folder, step) / "manifest.json").write_text("{}")


def test_the_newest_checkpoint_is_found_by_its_number_and_unfinished_ones_are_not(tmp_path):
    assert latest(tmp_path) is None
    finish(tmp_path, 999_999, 2, 1_000_000)
    step_path(tmp_path, 1_000_001).mkdir()
    assert latest(tmp_path) == tmp_path / "checkpoints" / "step_1000000"
    assert [path.name for path in step_paths(tmp_path)] == ["step_000002", "step_999999", "step_1000000"]


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    finish(tmp_path, *range(1, 6))
    deleted = keep_last(tmp_path, 2, best=step_path(tmp_path, 1))
    assert deleted == [step_path(tmp_path, 2), step_path(tmp_path, 3)]
    assert step_paths(tmp_path) == [step_path(tmp_path, step) for step in (1, 4, 5)]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        keep_last(tmp_path, 0)


def test_the_state_must_be_json_and_a_wrong_one_leaves_nothing_behind(make_policy, tmp_path):
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path / "c", fresh(make_policy), state={"wrong": object()})
    assert not list(tmp_path.iterdir())


def test_the_settings_may_change_between_runs(make_policy, make_trajectory, tmp_path):
    learner = fresh(make_policy)
    set_seeds(1)
    train(learner, make_trajectory, range(1))
    save_checkpoint(tmp_path / "c", learner)
    slower = fresh(make_policy, settings=changed(SETTINGS, learning_rate=1e-6, warmup_steps=0))
    load_checkpoint(tmp_path / "c").restore(slower)
    assert train(slower, make_trajectory, range(1))[0]["learning_rate"] == pytest.approx(1e-6)


def in_json(change):
    return lambda content: json.dumps(change(json.loads(content))).encode()


def with_another_header(content: bytes) -> bytes:
    return b"\xff" * 8 + content[8:]  # the length of the header


WRONG_VALUE = "a value in its files is not as a run writes it"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("learner.json", in_json(lambda content: {k: v for k, v in content.items() if k != "num_steps"}), WRONG_VALUE),
        ("learner.json", in_json(lambda content: content | {"kl_controller": float("nan")}), WRONG_VALUE),
        ("learner.json", in_json(lambda content: [content]), WRONG_VALUE),
        ("random.json", in_json(lambda content: {}), WRONG_VALUE),
        ("random.json", in_json(lambda content: dict.fromkeys(content, "x")), WRONG_VALUE),
        ("optimizer.safetensors", with_another_header, ""),
        ("policy/model.safetensors", with_another_header, ""),
    ],
)
def test_a_checkpoint_that_was_edited_together_with_its_manifest_is_named(name, change, message, make_policy, tmp_path):
    """Or one of another version."""
    learner = fresh(make_policy)
    path = save_checkpoint(tmp_path / "c", learner)
    (path / name).write_bytes(change((path / name).read_bytes()))
    write_manifest(path, json.loads((path / "manifest.json").read_text())["files"])
    with pytest.raises(CheckpointError, match=rf"checkpoint {path}.*{message}"):
        load_checkpoint(path).restore(learner)

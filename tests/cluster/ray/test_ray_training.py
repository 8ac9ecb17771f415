"""Training with rollouts on Ray: the same run as in this process, with tools, environments and data sets."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from precision import logit_tolerance
from ray_worlds import Echo, caller, settings, twice

from midthought import RayPPOTrainer
from midthought.memory.chunks import Chunk
from midthought.memory.embedding import MiniLMEmbedder
from midthought.memory.store import MemoryStore
from midthought.memory.tool import MemoryRetrievalTool
from midthought.tools.call_formats.registry import find_call_format
from midthought.tools.registry import ToolRegistry
from midthought.trainer.rollouts import PromptBuilder

QUESTIONS = [{"question": f"Say a colour, {place}.", "answer": "red"} for place in ("first", "second", "third")]


def by_length(trajectory: Any) -> float:
    return trajectory.num_sampled / 10 + trajectory.token_ids[-1] % 7


def run(policy: Any, tokenizer: Any, **options: Any) -> tuple[list[dict[str, float]], dict[str, float], Any]:
    config = options.pop("config")
    options |= {"model": copy.deepcopy(policy), "tokenizer": tokenizer}
    with RayPPOTrainer(config, **options) as trainer:
        figures = trainer.fit()
        judged = trainer.evaluate(2)
        weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    return figures, judged, weights


def without_times(figures: dict[str, float]) -> dict[str, str]:
    return {name: repr(value) for name, value in figures.items() if not name.startswith("time/")}


@pytest.mark.parametrize(
    "options",
    [
        {"env": Echo},
        {"dataset": QUESTIONS, "validation": QUESTIONS, "reward_fn": by_length, "tools": [twice]},
    ],
    ids=["environment", "data set"],
)
def test_two_iterations_with_one_worker_are_those_of_this_process(cluster, policy, tokenizer, options):
    config = settings(training={"num_train_iters": 2})
    far = run(policy, tokenizer, config=config, **options)
    config.ray.use_ray = False
    near = run(policy, tokenizer, config=config, **options)
    assert len(far[0]) == len(near[0]) == 2
    assert [without_times(figures) for figures in far[0]] == [without_times(figures) for figures in near[0]]
    assert without_times(far[1]) == without_times(near[1])
    assert all((far[2][name] == tensor).all() for name, tensor in near[2].items())
    assert math.isfinite(far[0][-1]["loss"])
    assert far[0][-1]["logprob_difference_max"] < logit_tolerance(policy, 256)


def test_calls_of_the_memory_are_answered_in_the_worker(cluster, tokenizer, renderer, tmp_path):
    pytest.importorskip("lancedb")
    store = MemoryStore.open(tmp_path / "memory", embedder=MiniLMEmbedder(dtype="float32"))
    words = "the tide is late"
    store.build([Chunk("a_0", episode="A", stem="a", speaker="Ann", transcript=words, time="00:00:01", number=0)])
    tool = MemoryRetrievalTool(store, k=1, mode="full_text")
    call_format = find_call_format("in_thought")
    prompts = PromptBuilder("", ToolRegistry([tool]), call_format)
    call = call_format.render_call("memory_retrieval", {"query": "tide"})
    result = f"\n#memory_retrieval_result:\n{tool.execute(query='tide').text}\n\n"
    policy = caller(renderer, prompts, QUESTIONS[0]["question"], call, result)
    told = []
    for use_ray in (True, False):
        config = settings(inference={"max_tokens": 120}, ray={"use_ray": use_ray})
        options = {"model": copy.deepcopy(policy), "tokenizer": tokenizer, "tools": [tool]}
        with RayPPOTrainer(config, dataset=QUESTIONS, reward_fn=by_length, **options) as trainer:
            told.append([(t.token_ids, [(e.call, e.metadata) for e in t.tool_events]) for t in trainer.rollout()])
    assert told[0] == told[1]
    assert any("Ann" in event.result for _, events in told[0] for event, _ in events)


def test_a_checkpoint_goes_on_as_if_it_had_never_stopped(cluster, policy, tokenizer, tmp_path):
    options = {"env": Echo, "tokenizer": tokenizer}
    with RayPPOTrainer(settings(), model=copy.deepcopy(policy), **options) as trainer:
        trainer.train_step(trainer.rollout())
        trainer.save_checkpoint(tmp_path / "one")
        whole = trainer.train_step(trainer.rollout())
        trainer.load_checkpoint(tmp_path / "one")
        again = trainer.train_step(trainer.rollout())
    assert without_times(again) == without_times(whole)


def test_cleaning_up_ends_the_workers_and_leaves_the_cluster(cluster, policy, tokenizer):
    trainer = RayPPOTrainer(settings(num_actors=2), Echo, model=policy, tokenizer=tokenizer)
    trainer.rollout()
    actors = [slot.actor for slot in trainer.source._worker_group._pool.slots]
    trainer.cleanup()
    trainer.cleanup()
    assert cluster.is_initialized()
    for actor in actors:
        with pytest.raises(cluster.exceptions.RayActorError):
            cluster.get(actor.activate_weights.remote(), timeout=30)

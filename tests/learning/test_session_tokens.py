"""Tokens that a session captured: the learner recomputes their log-probabilities as the engine sampled them."""

import asyncio

import pytest
from published_templates import PUBLISHED
from training_settings import training

from midthought.config import InferenceConfig
from midthought.engines.local.engine import LocalEngine
from midthought.learning.batch import TokenBatch
from midthought.learning.learner import Learner
from midthought.learning.model import frozen_copy
from midthought.rollout.turn_graph import TurnGraph
from midthought.serve.chat_answer import ChatAnswer, ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages
from midthought.serve.chat_policy import ChatPolicy
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.executor import ToolExecutor
from midthought.tools.registry import ToolRegistry
from midthought.types import Reward, Task, Trajectory

LENGTH = 1024


async def converse(answers: ChatAnswers) -> None:
    """A conversation of three turns, two branches of it at the same time, n = 2, an edit, and a compaction."""

    async def ask(*messages: dict[str, str]) -> tuple[list[dict[str, str]], ChatAnswer]:
        answer = await answers.answer(ChatRequest(messages=checked_messages(messages), max_tokens=12))
        answer.node.is_delivered = True
        return [*messages, {"role": "assistant", "content": answer.content}], answer

    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    first, _ = await ask(user("One?"))
    second, answer = await ask(*first, user("Two?"))
    assert answer.node.parent is not None
    branches = await asyncio.gather(*(ask(*second, user(text)) for text in ("Three?", "Four?", "Four?")))
    assert all(answer.node.parent is not None for _, answer in branches)
    _, answer = await ask(*first[:1], {"role": "assistant", "content": "Edited."}, user("Five?"))
    assert answer.node.parent is None
    await ask(user("Summary."), *branches[0][0][-1:], user("Six?"))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_captured_log_probabilities_are_those_of_the_learner(make_policy, temperature):
    qwen3 = next(each for each in PUBLISHED if each.name == "qwen3")
    choice = choose_call_format(Renderer(qwen3.tokenizer()), [])
    model = make_policy(vocab_size=len(choice.renderer.tokenizer), max_position_embeddings=LENGTH)
    policy = ChatPolicy(
        engine=LocalEngine(model, eos_token_ids=sorted(choice.renderer.eos_token_ids), max_seq_len=LENGTH),
        renderer=choice.renderer,
        call_format=choice.call_format,
        executor=ToolExecutor(ToolRegistry()),
        max_seq_len=LENGTH,
        inference=InferenceConfig(max_tokens=LENGTH, temperature=temperature),
    )
    answers = ChatAnswers(policy, TurnGraph(), seed=3)
    asyncio.run(converse(answers))
    record = Trajectory(Task(task_id="t", prompt="?", answer="!"), [0])
    assert len(answers.graph.fill(record)) == 7 and len(record.segments) == 5
    record.check()
    record.reward = Reward(parts={"right": 1.0})
    batch = TokenBatch.from_trajectories([record])
    assert int(batch.loss_mask.sum()) == record.num_sampled == sum(map(len, record.sampled_runs())) >= 60
    _, figures = Learner(model, None, frozen_copy(model), training()).score(batch)
    assert figures["logprob_difference_max"] <= 1e-4

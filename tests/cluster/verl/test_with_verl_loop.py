"""A really installed verl runs our loop: its AgentLoopOutput holds our Trajectory's ids, mask and log-probabilities."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here; see MIDTHOUGHT_VERL_PYTHON in test_real_verl.py")

import worlds
from verl.workers.rollout.replica import TokenOutput
from with_verl import batch_of, configured, generate, require_equal
from worlds import Manager, every_few, parts, task

from midthought.cluster.verl.job import EpisodeSetup
from midthought.cluster.verl.record import RECORD, rows_of
from midthought.engines.local.engine import LocalEngine
from midthought.engines.scripted import ScriptedEngine
from midthought.errors import DataError, EpisodeError, SettingsError
from midthought.rollout.episode import EpisodeStart, run_episodes
from midthought.tokenization import Renderer
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.types import Task, Trajectory

NUM_ROWS = 6
OPTIONS = {"supply": "worlds:supply", "max_segment_length": 24}


def rows_for(*tasks: Task) -> list[dict[str, Any]]:
    return rows_of(tasks, lambda each: each.messages("Be short."), data_source="x", ability="qa", split="train")


ROWS = rows_for(*map(task, range(NUM_ROWS)))


@pytest.fixture
def play(model_path: Path, renderer: Renderer, tmp_path: Path) -> Callable[..., Any]:
    """Runs rows in verl's worker; the policy ends every answer at once unless an engine is given. Returns (outputs, padded
    batch, requests)."""

    def play(*more: str, options: Any = OPTIONS, rows: Any = ROWS[:1], engine: Any = None, seed: int = 0) -> Any:
        engine = engine or ScriptedEngine(lambda episode, token_ids: None, renderer)
        manager = Manager(engine, TokenOutput, seed=seed)
        outputs, padded = generate(configured(tmp_path, model_path, options, *more), manager, batch_of(rows))
        return outputs, padded, manager.requests

    return play


def at_home(
    engine: Any, renderer: Renderer, call_format: Any, replies: tuple[str, ...] = (), **limits: Any
) -> list[Trajectory]:
    """The same episodes without verl."""
    limits = {"max_tokens": 160, "max_segment_length": 24, **limits}
    made = parts(engine, renderer, call_format, "Be short.", replies, **limits)
    starts = [EpisodeStart(task=task(number), seed=5) for number in range(NUM_ROWS)]
    found = asyncio.run(run_episodes(made, starts))
    assert [trajectory.error for trajectory in found] == [None] * NUM_ROWS
    return found


def local(model: Any, renderer: Renderer) -> LocalEngine:
    return LocalEngine(model, eos_token_ids=renderer.eos_token_ids, max_seq_len=512)


@pytest.mark.parametrize("replies", [(), ("Are you sure?",)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_output_is_our_trajectory_over_a_real_engine(
    model: Any, renderer: Renderer, play: Any, temperature: float, replies: tuple[str, ...]
) -> None:
    expected = at_home(local(model, renderer), renderer, every_few(), replies, temperature=temperature)
    options = OPTIONS | {"supply_options": {"every_few": True, "replies": list(replies)}}
    words = f"actor_rollout_ref.rollout.temperature={temperature}"
    outputs, padded, _ = play(words, options=options, rows=ROWS, engine=local(model, renderer), seed=5)
    assert sum(trajectory.num_calls for trajectory in expected) > NUM_ROWS
    require_equal(outputs, expected, 1e-5)
    # and what verl makes of it for its trainer: left- and right-padded
    for row, trajectory in enumerate(expected):
        mask = padded.batch["attention_mask"][row].bool()
        assert padded.batch["input_ids"][row][mask].tolist() == trajectory.token_ids
        assert int(padded.batch["response_mask"][row].sum()) == trajectory.num_sampled


def test_an_in_thought_call_ends_where_its_brace_does(renderer: Renderer, play: Any) -> None:
    words = ['<think>Hm. #call look {"word": "{tide}"}', "So.</think>Ada"]

    def script(episode: int, token_ids: Any) -> str | None:
        said = renderer.decode(token_ids).rpartition("assistant\n")[2]
        return words[0] if not said else words[1] if said.endswith("\n\n") else None

    expected = at_home(ScriptedEngine(script, renderer), renderer, InThoughtFormat())
    outputs, _, requests = play(rows=ROWS, engine=ScriptedEngine(script, renderer))
    require_equal(outputs, expected, 0.0)
    assert [trajectory.num_calls for trajectory in expected] == [1] * NUM_ROWS
    assert len({request["request_id"] for request in requests}) == NUM_ROWS


def test_its_own_agent_loop_sends_the_prompt_ids_that_ours_sends(renderer: Renderer, play: Any) -> None:
    both = rows_for(task(), dataclasses.replace(task(1), prompt="Ünï ﷽ \n\n  code: `x` </think>"))
    found = []
    for agent_name in ("midthought", "single_turn_agent"):
        outputs, _, _ = play(rows=[row | {"agent_name": agent_name} for row in both])
        found.append([output.prompt_ids for output in outputs])
    (ours, our_hostile), (theirs, their_hostile) = found
    assert ours == theirs
    assert renderer.decode(our_hostile) == renderer.decode(their_hostile)
    closes = renderer.control("</think>")[0]
    assert closes in their_hostile and closes not in our_hostile  # theirs lets a user close the thought


def test_the_chat_template_arguments_of_verls_configuration_are_heeded(renderer: Renderer, play: Any) -> None:
    [output], _, _ = play("+data.apply_chat_template_kwargs.enable_thinking=false")
    assert renderer.decode(output.prompt_ids).endswith("assistant\n<think>\n\n</think>\n\n")


def test_every_row_has_the_options_and_the_shared_parts_are_made_once(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[EpisodeSetup] = []

    def counted(*args: Any) -> EpisodeSetup:
        made.append(worlds.supply(*args))
        return made[-1]

    monkeypatch.setattr(worlds, "counted_supply", counted, raising=False)
    _, _, requests = play(options=OPTIONS | {"supply": "worlds:counted_supply"}, rows=ROWS)
    assert [request["max_tokens"] for request in requests] == [24] * NUM_ROWS
    assert len(made) == 1


def test_without_log_probabilities_none_are_given(play: Any) -> None:
    [output], _, _ = play("actor_rollout_ref.rollout.calculate_log_probs=false")
    assert output.response_logprobs is None and output.response_mask == [1]


def test_the_newest_weights_and_the_record_go_with_the_output(play: Any) -> None:
    [output], padded, _ = play()
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 7)
    assert output.metrics.num_preempted == 1
    assert '"stop_reason": "answered"' in padded.non_tensor_batch[RECORD][0]


class _Broken:
    async def generate(self, request_id: str, **asked: Any) -> Any:
        raise RuntimeError("the server burnt down")


@pytest.mark.parametrize(
    ("options", "more", "manager", "error", "words"),
    [
        (OPTIONS, (), _Broken(), EpisodeError, "'t0': RuntimeError: the server burnt down"),
        (
            OPTIONS,
            ("data.max_prompt_length=8",),
            None,
            DataError,
            r"its prompt has \d+ tokens, actor_rollout_ref.rollout.prompt_length is 8",
        ),
        ({"max_segment": 3}, (), None, SettingsError, "unknown key 'max_segment'.*max_segment_length"),
        ({"supply": "worlds:suply"}, (), None, SettingsError, "worlds has no 'suply'. Did you mean 'supply'"),
        ({"call_format": "in_though"}, (), None, SettingsError, "in_thought"),
    ],
)
def test_what_is_wrong_is_named(
    model_path: Path, tmp_path: Path, options: Any, more: Any, manager: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(Exception, match=words) as caught:
        generate(configured(tmp_path, model_path, options, *more), manager, batch_of(ROWS[:1]))
    assert isinstance(caught.value, error) or error.__name__ in str(caught.value)

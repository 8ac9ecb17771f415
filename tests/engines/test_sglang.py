"""SGLang: what is asked of it, and both of its ways of streaming. No real server runs without a GPU."""

import math
import warnings
from typing import Any

import pytest
from fake_server import FakeServer
from server_engines import PROMPT, engine_for, sample

from midthought.engines.engine import Sampling
from midthought.engines.servers.sglang import SGLangServer
from midthought.engines.servers.streams import RetryableError
from midthought.errors import EngineError
from midthought.types import Finish

pytest.importorskip("httpx")


def counting(context: list[int]) -> int:
    return len(context)


def event(listed: list[Any], completion_tokens: int, reason: Any = None, prompt_tokens: int = 3) -> dict[str, Any]:
    return {
        "text": "…",
        "meta_info": {
            "finish_reason": reason,
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "output_token_logprobs": listed,
        },
    }


def test_a_request_says_everything_that_the_servers_defaults_could_change():
    sampling = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=2**40 + 11)
    assert SGLangServer.body("tiny", (1, 2), sampling, [7]) == {
        "input_ids": [1, 2],
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "sampling_seed": 11,
            "ignore_eos": False,
            "stop_token_ids": [7],
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "stream": True,
    }
    greedy = Sampling(max_tokens=5, temperature=0.0, top_p=0.9, top_k=40, min_p=0.1)
    params = SGLangServer.body("tiny", (1, 2), greedy, [7], "an adapter")["sampling_params"]
    assert (params["top_p"], params["top_k"], params["min_p"], params["repetition_penalty"]) == (1.0, -1, 0.0, 1.0)
    assert SGLangServer.body("tiny", (1, 2), greedy, [7], "an adapter")["lora_path"] == "an adapter"


A, B, C = [-0.1, 5, None], [-0.2, 6, None], [None, 7, None]


@pytest.mark.parametrize(
    "events",
    [
        [([A], 1), ([A, B], 2), ([A, B, C], 3)],  # all so far
        [([A], 1), ([B], 2), ([C], 3)],  # the new ones
        [([A, B], 1), ([A, B], 2), ([A, B, C], 3)],  # all so far, and one that came while it was written
        [([], 0), ([A, B, C], 3), ([A, B, C], 3)],
        [([A, B], 2), ([], 2), ([C], 3)],
    ],
)
def test_cumulative_and_incremental_events_give_the_same_tokens(events):
    read = SGLangServer.reader(PROMPT)
    chunks = [read(event(listed, num_all)) for listed, num_all in events]
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == [5, 6, 7]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert logprobs[:2] == [-0.1, -0.2] and math.isnan(logprobs[2])


def test_events_that_do_not_fit_together_and_refusals_are_told_apart():
    with pytest.raises(ValueError, match="1 tokens listed, 4 sampled, 0 seen"):
        SGLangServer.reader(PROMPT)(event([A], 4))
    with pytest.raises(EngineError, match="prompt of 3 tokens and continued one of 4"):
        SGLangServer.reader(PROMPT)(event([A], 1, prompt_tokens=4))
    without = event([A], 1)
    del without["meta_info"]["output_token_logprobs"]
    with pytest.raises(EngineError, match="no log-probabilities"):
        SGLangServer.reader(PROMPT)(without)
    for status, error in [(400, EngineError), (503, RetryableError), (None, RetryableError)]:
        with pytest.raises(error, match="too long"):
            SGLangServer.reader(PROMPT)(event([A], 1, {"type": "abort", "message": "too long", "status_code": status}))


def test_where_the_server_stops_at_a_token_that_is_no_end_for_us_it_goes_on():
    with FakeServer("sglang", counting, server_eos=[4, 5]) as server:
        completion = sample(engine_for(server, eos=[7]), 6)
        assert (completion.token_ids, completion.finish) == ((3, 4, 5, 6, 7), Finish.END)
        assert server.prompts == [PROMPT, [*PROMPT, 3, 4], [*PROMPT, 3, 4, 5]]


def test_a_server_that_ends_without_a_token_again_and_again_is_given_up():
    with FakeServer("sglang", counting, server_eos=[3]) as server:
        server.alter = lambda said: event([], 0, {"type": "stop", "matched": "NaN happened"})
        with pytest.raises(EngineError, match=r"2 requests failed.*ended without a token"):
            sample(engine_for(server, max_attempts=2), 6)


def test_temperature_counts_in_its_log_probabilities_and_the_nucleus_does_not():
    with FakeServer("sglang", logits=[2.0, 1.0, 0.0, -1.0], records="temperature") as server:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            completion = sample(engine_for(server), 40, temperature=2.0)
        probabilities = [0.455, 0.276, 0.167, 0.102]
        for token_id, logprob in zip(completion.token_ids, completion.sampled_logprobs, strict=True):
            assert abs(math.exp(logprob) - probabilities[token_id]) < 1e-3
        with pytest.warns(UserWarning, match=r"what it samples with top_p=0\.8.* NaN is recorded instead"):
            completion = sample(engine_for(server), 6, top_p=0.8)
        assert all(map(math.isnan, completion.sampled_logprobs))

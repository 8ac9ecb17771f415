"""vLLM without a server: what it says where it is not installed, and a real one in the interpreter that has it.

That interpreter need not have pytest: it runs `SCRIPT`, once, and what the script saw is judged here.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_qwen import make_model, token_logprobs
from vllm_python import PYTHON, needs_vllm

from midthought.engines.create import create_inference_engine
from midthought.engines.inference_engines import VLLMInProcessInferenceEngine
from midthought.engines.vllm_in_process import VLLMInProcessEngine
from midthought.errors import MissingExtraError, SettingsError
from midthought.models.pretrained import save_model
from midthought.tokenization import Renderer

DRAWN: list[dict[str, Any]] = [
    *({}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.1}),
    {"top_p": 0.9, "top_k": 20, "min_p": 0.02, "temperature": 1.5},
]
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
PROMPT = "Who found the tide clock, and who kept it?"

SCRIPT = '''
import asyncio, json, os, signal, sys, threading, time
from types import SimpleNamespace
import psutil
from midthought import create_inference_engine
from midthought.errors import MidthoughtError
from midthought.engines.engine import Sampling
from midthought.engines.servers.connection import RetryPolicy
from playing import EveryFew, Look, parts_of, play

LONG = Sampling(max_tokens=30_000)

class At:
    """Stops at a number of tokens; before the first one it lets more of them come."""

    def __init__(self, number, *, wait_seconds=0.0):
        self.number, self.wait_seconds = number, wait_seconds

    def feed(self, token_id):
        time.sleep(self.wait_seconds)
        self.wait_seconds, self.number = 0.0, self.number - 1
        return self.number == 0

def trajectories(engine, temperature):
    limits = {"max_tokens": 150, "max_segment_length": 24, "temperature": temperature}
    found = play(parts_of(engine.core, engine.renderer, call_format=EveryFew(num_calls=3), tools=[Look()], **limits), 6)
    for each in found:
        each.check()
    return [
        {"token_ids": list(each.token_ids), "mask": list(each.loss_mask), "logprobs": list(each.sampled_logprobs),
         "num_calls": each.num_calls, "error": each.error}
        for each in found
    ]

def said(act):
    began_at = time.monotonic()
    try:
        act()
    except MidthoughtError as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - began_at]
    return ["nothing", 0.0]

def is_free(engine):
    """Whether vLLM's scheduler soon holds no request: only then does it drop its prefix cache."""
    llm = engine.core._llm
    for _ in range(100):
        if llm.get_num_unfinished_requests() == 0 and engine.core._loop.run(llm.reset_prefix_cache()):
            return True
        time.sleep(0.1)
    return False

def children():
    return psutil.Process().children(recursive=True)

async def ended(core, episode, prompt, act):
    """Does this after the first token of a long sample; how the sample ended."""
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    feed = lambda _: loop.call_soon_threadsafe(begun.set) is None  # in a thread of the engine; False: goes on
    task = asyncio.create_task(core.sample(episode, prompt, LONG, stopper=SimpleNamespace(feed=feed)))
    await begun.wait()
    act(task)
    try:
        await asyncio.wait_for(task, 60)
    except asyncio.CancelledError:
        return "cancelled"
    return "completed"

def send(number):
    for process in children():
        process.send_signal(number)

def main(folder, target, drawn, prompt):
    report, options = {}, {"in_process": True, "dtype": "float32", "max_num_seqs": 8}
    make = lambda **more: create_inference_engine(folder, backend="vllm", config={**options, **more})
    report["unknown_argument"] = said(lambda: make(engine_args={"max_num_batched_token": 512}))
    report["settled_argument"] = said(lambda: make(engine_args={"trust_remote_code": True}))
    report["does_not_start"] = said(lambda: make(max_seq_len=10**6))
    environment = dict(os.environ)
    engine = make(engine_args={"max_num_batched_tokens": 40_000})
    report["environment_is_kept"] = dict(os.environ) == environment
    core = engine.core
    token_ids = engine.encode(prompt)
    report["prompt_ids"], report["drawn"] = token_ids, []
    for sampling in drawn:
        output = engine.generate([prompt] * 3, max_tokens=40, **sampling)
        rows = [[output.tokens[row, :n].tolist(), output.log_probs[row, :n].tolist()] for row, n in enumerate(output.lengths)]
        report["drawn"].append(rows)
    again = engine.generate([prompt] * 3, max_tokens=40, **drawn[0])
    report["again"] = [again.tokens[row, :n].tolist() for row, n in enumerate(again.lengths)]
    report["trajectories"] = {str(temperature): trajectories(engine, temperature) for temperature in (0.0, 1.0)}
    report["free_after_trajectories"] = is_free(engine)
    report["stopped"] = []
    for wait_seconds in (0.0, 2.0):
        stopper = At(2, wait_seconds=wait_seconds)
        stopped = engine.run(core.sample(1, token_ids, LONG, stopper=stopper))
        report["stopped"].append([len(stopped.token_ids), str(stopped.finish), stopped.num_cut, is_free(engine)])
    ways = {"cancel": lambda task: task.cancel(), "close": lambda task: core.close(50)}
    report["ended"] = {name: [asyncio.run(ended(core, 50, token_ids, act)), is_free(engine)] for name, act in ways.items()}
    sample = lambda ids: asyncio.run(core.sample(2, ids, Sampling(max_tokens=2)))
    report["empty"] = said(lambda: sample([]))
    report["no_token"] = said(lambda: sample([1, 10**6]))
    report["negative"] = said(lambda: sample([1, -1]))
    patient, core.retry_policy = core.retry_policy, RetryPolicy(next_token_timeout_seconds=3.0)
    report["stalled"] = said(lambda: asyncio.run(ended(core, 60, token_ids, lambda task: send(signal.SIGSTOP))))
    send(signal.SIGCONT)
    core.retry_policy = patient
    report["free_after_stall"] = is_free(engine)
    report["killed"] = said(lambda: asyncio.run(ended(core, 60, token_ids, lambda task: send(signal.SIGKILL))))
    report["after_kill"] = said(lambda: engine.generate(prompt))
    engine.shutdown()
    engine.shutdown()
    report["after_shutdown"] = said(lambda: engine.generate(prompt))
    other = make(max_seq_len=512, engine_args={"max_num_batched_tokens": 512})
    async def many():
        sampling = Sampling(max_tokens=5, seed=1)
        return await asyncio.gather(*(other.core.sample(100 + n, [n + 1] * 400, sampling) for n in range(8)))
    report["more_than_a_pass"] = [[len(each.token_ids), str(each.finish)] for each in asyncio.run(many())]
    sample = lambda ids: asyncio.run(other.core.sample(2, ids, Sampling(max_tokens=2000)))
    report["full"] = [[len(each.token_ids), str(each.finish)] for each in map(sample, ([1] * 512, [1] * 600, [1] * 511))]
    report["longest"] = max(other.generate([prompt] * 4, max_tokens=4000).lengths)
    greedy = report["drawn"][1][0][0]
    other.core.eos_token_ids = frozenset([greedy[5]])
    done = asyncio.run(other.core.sample(3, token_ids, Sampling(max_tokens=40, temperature=0.0)))
    report["end"] = [list(done.token_ids), greedy[: greedy.index(greedy[5]) + 1], str(done.finish)]
    threading.Timer(2.0, other.core.shutdown).start()
    report["shut_down_meanwhile"] = said(lambda: [other.generate([prompt] * 8, max_tokens=400, seed=n) for n in range(500)])
    other.shutdown()
    report["num_left"] = len([each for each in children() if "resource_tracker" not in " ".join(each.cmdline())])
    with open(target, "w") as file:
        json.dump(report, file)

if __name__ == "__main__":
    folder, target, drawn, prompt = sys.argv[1:]
    main(folder, target, json.loads(drawn), prompt)
'''


def test_without_the_package_every_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"pip install vllm.*instead of in_process.*server_python.*base_url"):
        create_inference_engine(tmp_path, backend="vllm", config={"in_process": True})
    with pytest.raises(MissingExtraError, match="needs it in this environment"):
        VLLMInProcessInferenceEngine(tmp_path)
    with pytest.raises(MissingExtraError, match="needs it in this environment"):
        VLLMInProcessEngine(tmp_path, eos_token_ids=[1])


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("vllm", {"in_process": "yes"}, "in_process='yes': give true or false"),
        ("vllm", {"in_process": True, "base_url": "http://127.0.0.1:1"}, "unknown option 'base_url'.*in_process"),
        ("vllm", {"in_proces": True}, "Did you mean 'in_process'"),
        ("sglang", {"in_process": True}, "unknown option 'in_process'"),
    ],
)
def test_what_is_unknown_or_wrong_is_named_before_anything_starts(renderer, backend, options, message):
    with pytest.raises(SettingsError, match=message):
        create_inference_engine("m", backend=backend, config=options, tokenizer=renderer.tokenizer)


@pytest.fixture(scope="module")
def model(renderer: Renderer) -> Any:
    return make_model(len(renderer.tokenizer), tied=False)


@pytest.fixture(scope="module")
def report(model: Any, renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the script saw."""
    folder = tmp_path_factory.mktemp("in_process")
    model.config.max_position_embeddings = 40_000  # what is not aborted goes on for longer than anybody waits here
    save_model(model, renderer.tokenizer, folder / "model")
    (folder / "script.py").write_text(SCRIPT, "utf-8")
    drawn = json.dumps([{**PLAIN, **drawn} for drawn in DRAWN])
    return reported(folder / "script.py", str(folder / "model"), folder / "report.json", drawn, PROMPT, timeout=900)


def reported(script: Path, *words: Any, timeout: float) -> Any:
    """What the script writes into its report, the file among the words."""
    tests = Path(__file__).parents[1]
    ended = subprocess.run(
        [PYTHON, str(script), *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{tests.parent}:{tests}", "VLLM_CPU_KVCACHE_SPACE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    (report,) = (word for word in words if isinstance(word, Path))
    return json.loads(report.read_text("utf-8"))


class TestReal:
    pytestmark = needs_vllm

    @pytest.mark.parametrize("number", range(len(DRAWN)), ids=[str(drawn) for drawn in DRAWN])
    def test_what_is_drawn_is_recorded_as_it_was_drawn(self, report: Any, model: Any, number: int) -> None:
        sampling = {**PLAIN, **DRAWN[number]}
        rows = report["drawn"][number]
        assert len({tuple(token_ids) for token_ids, _ in rows}) == (1 if sampling["temperature"] == 0 else 3)
        for token_ids, logprobs in rows:
            sequence = [*report["prompt_ids"], *token_ids]
            with torch.no_grad():
                logits = model(torch.tensor([sequence]), use_cache=False).logits[0]
            for place, logprob in enumerate(logprobs, len(report["prompt_ids"])):
                expected = log_distribution(logits[place - 1], **sampling)[sequence[place]]
                assert abs(float(expected) - logprob) < 1e-3

    def test_a_seed_gives_the_same_again(self, report: Any) -> None:
        assert report["again"] == [token_ids for token_ids, _ in report["drawn"][0]]

    @pytest.mark.parametrize("temperature", ["0.0", "1.0"])
    def test_whole_tool_trajectories_are_scored_alike_by_a_plain_forward_pass(self, report, model, temperature):
        found = report["trajectories"][temperature]
        assert [each["error"] for each in found] == [None] * 6
        assert sum(each["num_calls"] for each in found) >= 6
        for each in found:
            expected = token_logprobs(model, each["token_ids"])
            mask = torch.tensor(each["mask"][1:])
            assert mask.any() and not mask.all()
            assert (torch.tensor(each["logprobs"][1:]) - expected)[mask].abs().max() < 1e-3

    def test_a_stopped_call_is_aborted_and_what_came_beyond_is_cut_and_counted(self, report: Any) -> None:
        at_once, late = report["stopped"]
        assert [at_once[:2], late[:2]] == [[2, "call"]] * 2
        assert 1 <= late[2] < 20_000
        assert [at_once[3], late[3], report["free_after_trajectories"]] == [True] * 3

    def test_a_sample_that_is_cancelled_or_closed_is_aborted(self, report: Any) -> None:
        assert report["ended"] == {"cancel": ["cancelled", True], "close": ["cancelled", True]}

    def test_a_sequence_ends_where_the_context_does(self, report: Any) -> None:
        assert report["full"] == [[0, "length"], [0, "length"], [1, "length"]]
        assert report["longest"] == 512 - len(report["prompt_ids"])

    def test_an_end_of_sequence_token_ends_it_and_is_kept(self, report: Any) -> None:
        token_ids, expected, finish = report["end"]
        assert (token_ids, finish) == (expected, "end")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("unknown_argument", "SettingsError: .* no 'max_num_batched_token'; nearest: max_num_batched_tokens"),
            ("settled_argument", "SettingsError: .*'trust_remote_code'.*never run"),
            ("does_not_start", "EngineError: vLLM does not start"),
            ("empty", "EngineError: episode 2: nothing to continue"),
            ("no_token", "EngineError: episode 2: 1000000 is not a token of the model"),
            ("negative", "EngineError: episode 2: -1 is not a token of the model"),
            ("stalled", "EngineError: episode 60: vLLM returned no token for 3 s"),
            ("killed", "EngineError: episode 60: vLLM failed"),
            ("after_kill", "EngineError: vLLM's process has ended"),
            ("after_shutdown", "EngineError: this VLLMInProcessInferenceEngine was shut down"),
            ("shut_down_meanwhile", "EngineError: .*shut down"),
        ],
    )
    def test_what_goes_wrong_is_said_and_nothing_hangs(self, report: Any, name: str, message: str) -> None:
        said, seconds = report[name]
        assert re.match(message, said), said
        assert seconds < 60

    def test_prompts_of_more_tokens_than_a_pass_takes_are_drawn_after_with_their_seeds(self, report: Any) -> None:
        """vLLM on a CPU ends where it computes such a prompt in parts."""
        assert len(report["more_than_a_pass"]) == 8
        assert all(found == [5, "length"] or found[1] == "end" for found in report["more_than_a_pass"])

    def test_nothing_is_left_behind(self, report: Any) -> None:
        assert report["free_after_stall"] and report["environment_is_kept"] and report["num_left"] == 0


def log_distribution(logits: Any, *, temperature: float, top_p: float, top_k: int, min_p: float) -> Any:
    """By the definitions: temperature, min_p, top_k, top_p, each on what the one before left."""
    logits = logits.double()
    if temperature == 0:
        return logits.log_softmax(-1)
    logits = logits / temperature
    probabilities = logits.softmax(-1)
    logits = logits.masked_fill(probabilities < min_p * probabilities.max(), -torch.inf)
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    ordered, order = logits.softmax(-1).sort(descending=True)
    outside = order[ordered.cumsum(-1) - ordered >= top_p]
    return logits.index_fill(0, outside, -torch.inf).log_softmax(-1)


TRAINED_CASES = 4
NUM_ITERS = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What train_with_vllm.py reports."""
    target = tmp_path_factory.mktemp("trained") / "report.json"
    return reported(Path(__file__).with_name("train_with_vllm.py"), target, NUM_ITERS, timeout=1800)


class TestTraining:
    pytestmark = needs_vllm

    def test_after_every_update_it_samples_from_the_policy(self, trained: Any) -> None:
        cases = {name: case for name, case in trained.items() if name != "lost tensor"}
        assert len(cases) == TRAINED_CASES
        for name, case in cases.items():
            assert len(case["differences"]) == case["policy_version"] == NUM_ITERS, name
            assert max(case["differences"]) < 1e-3, name
            assert case["moved"] > 1e-2, name  # old weights would not do
            assert case["calls"] >= 2, name

    def test_an_update_that_loses_a_tensor_is_noticed(self, trained: Any) -> None:
        assert "vLLM does not compute with the new weights" in trained["lost tensor"]

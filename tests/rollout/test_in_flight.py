"""Episodes that outlive an iteration: none is lost or repeated, tokens name their policy version, restarts change nothing."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
from playing import parts_of

from midthought.config import RecipeConfig
from midthought.errors import EngineError, SettingsError
from midthought.rollout.groups import Pace
from midthought.rollout.in_flight import InFlightEpisodes
from midthought.rollout.selection import collect
from midthought.rollout.trajectory_json import trajectory_to_json
from midthought.tools.background_loop import BackgroundLoop
from midthought.tools.call_formats.in_thought import InThoughtFormat
from midthought.tools.definition import Tool, ToolDefinition, ToolParameter
from midthought.types import Completion, Finish, Reward, StopReason, Task, ToolCall, ToolEvent, ToolOutcome

CALL_FORMAT = InThoughtFormat()
CALL = '<think>Hm. #call look {"word": "tide"}'
RESULT = "It was there."


class Writer:
    """A policy that, asked to `Write 30 slowly`, makes a call first (`slowly`), then writes 30 tokens and ends.

    One token a turn of the event loop. `log[seed]` says of every token its place and the version that wrote it.
    """

    def __init__(self, renderer) -> None:
        self.policy_version = 0
        self.eos_token_ids = renderer.eos_token_ids
        self.log = defaultdict(list)
        self.weights, self.written_by = 0, {}
        """Weights, and which of them wrote the token of a seed and place, whatever version it has."""
        self._renderer = renderer
        event = ToolEvent(call=ToolCall(tool_name="look", success=True, result=RESULT), outcome=ToolOutcome.OK)
        self._result = renderer.foreign(CALL_FORMAT.render_results([event]))
        self.open_episodes = set()

    def open(self, episode):
        self.open_episodes.add(episode)

    def close(self, episode):
        self.open_episodes.remove(episode)

    def _script(self, token_ids):
        text = self._renderer.decode(token_ids)
        prompt, words = text.split("\n<|im_start|>assistant\n")[0], text.split("Write ")[1].split("<")[0].split()
        head = self._renderer.control(prompt + "\n<|im_start|>assistant\n")
        call = [*self._renderer.control(CALL), *self._result] if "slowly" in words else []
        letter = self._renderer.control("a")
        return [*head, *call, *letter * int(words[0]), min(self.eos_token_ids)]

    async def sample(self, episode, token_ids, sampling, *, stopper=None):
        assert episode in self.open_episodes
        script, written, finish = self._script(token_ids), [], Finish.LENGTH
        assert script[: len(token_ids)] == token_ids
        while len(written) < sampling.max_tokens and finish is Finish.LENGTH:
            await asyncio.sleep(0)
            place = len(token_ids) + len(written)
            written.append(script[place])
            self.log[sampling.seed].append((place, self.policy_version))
            self.written_by[sampling.seed, place] = self.weights
            if written[-1] in self.eos_token_ids:
                finish = Finish.END
            elif stopper.feed(written[-1]):
                finish = Finish.CALL
        return Completion(
            token_ids=tuple(written),
            sampled_logprobs=tuple(-float(place) for place in range(len(token_ids), len(token_ids) + len(written))),
            finish=finish,
            policy_version=self.policy_version,
        )


class Question:
    """Keeps no state."""

    follows_from_record = True

    async def reply(self, trajectory):
        return None

    async def score(self, trajectory):
        return Reward(parts={"length": float(trajectory.num_sampled)})


class Stateful(Question):
    follows_from_record = False


class Look(Tool):
    definition = ToolDefinition("look", "Looks it up.", [ToolParameter("word", "string", "What to look for.")])

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, 0

    def execute(self, word):
        self.asked += 1
        time.sleep(self.seconds)
        return RESULT


def task(number, words):
    return Task(task_id=f"t{number}", prompt=f"Write {words}", answer="")


class Bench:
    """A stream with its engine, loop and tool."""

    def __init__(self, renderer, *, look=None, seconds=0.0, environment=Question, max_staleness=2, **options):
        self.found, self.look = [], look or Look(seconds)
        self.engine = Writer(renderer)
        self.loop = BackgroundLoop("test-stream")
        usual = {"messages": lambda task: task.messages(), "environment": lambda task: environment()}
        parts = parts_of(self.engine, renderer, tools=[self.look], max_segment_length=32, **usual)
        pace = Pace(num_groups=4, max_staleness=max_staleness, max_open=6, max_taken=4)
        options["checksum"] = lambda: self.engine.weights
        self.stream = InFlightEpisodes(parts, self.loop, pace, seed=1, **options)

    @property
    def asked(self):
        """Number of calls of the tool that began."""
        return self.look.asked

    def close(self):
        self.stream.drop()
        self.loop.close()

    def carry_over_a_call(self, has_begun):
        """Takes a short episode while another one waits for its tool."""
        self.begin(task(0, "5 slowly"), task(1, "5"))
        assert [t.group for t in self.take()] == [1]
        while not has_begun():
            time.sleep(0.001)
        self.stream.pause()

    def begin(self, *tasks, group_size=1):
        for each in tasks:
            self.stream.begin(lambda position, each=each: each, group_size)

    def take(self):
        """The group that is finished first, as if many batches had room for it."""
        self.found = self.found or self.stream.take(self.engine.policy_version, 4)
        return self.found.pop(0)

    def iterate(self, num_iters, tasks, *, group_size=2):
        """Iterations as the training loop makes them; the groups of each."""
        stream, done = self.stream, []
        for _ in range(num_iters):
            groups, batch = [], self.engine.policy_version
            while room := stream.pace.room(len(groups), len(groups)):
                while stream.pace.may_start(stream.deadlines, batch, batch, room, None):
                    stream.begin(tasks, group_size)
                groups += stream.take(batch, room)
            stream.pause()
            done.append(groups)
            self.engine.policy_version += 1
        return done


@pytest.fixture
def make_bench(renderer):
    made = []

    def make(**options):
        made.append(Bench(renderer, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def tails(number):
    """Every third is long, every fourth calls a tool."""
    return task(number, f"{700 if number % 3 == 1 else 20 + number}{' slowly' if number % 4 == 0 else ''}")


def by_value(groups):
    return [without_clocks(trajectory_to_json(trajectory)) for group in groups for trajectory in group]


def open_episodes(stream):
    """The records of the episodes that were not taken, in the order of their groups, as JSON values."""
    groups = sorted(stream.state()["groups"], key=lambda group: group["position"])
    return [episode for group in groups for episode in group["episodes"]]


def without_clocks(row):
    """A record's row without seconds."""
    events = [{**event, "seconds": 0.0} for event in row["tool_events"]]
    return {**row, "engine_seconds": 0.0, "tool_seconds": 0.0, "tool_events": events}


@pytest.mark.parametrize("deterministic", [False, True])
def test_over_many_iterations_every_episode_is_whole_and_every_token_knows_who_wrote_it(deterministic, make_bench):
    bench = make_bench(deterministic=deterministic, seconds=0.02)
    done = bench.iterate(6, tails)
    groups = [group for iteration in done for group in iteration]
    numbers = [group[0].group for group in groups]
    assert len(groups) == 24 and len(set(numbers)) == 24
    assert {(len(group), len({t.group for t in group})) for group in groups} == {(2, 1)}
    episodes = [trajectory for group in groups for trajectory in group]
    assert len({trajectory.seed for trajectory in episodes}) == 48
    for iteration, trajectory in [(i, t) for i, found in enumerate(done) for group in found for t in group]:
        trajectory.check()
        (segment,) = trajectory.segments
        assert trajectory.task.prompt == tails(trajectory.group).prompt
        assert trajectory.stop_reason is StopReason.ANSWERED and trajectory.reward.total == trajectory.num_sampled
        log = bench.engine.log[trajectory.seed]
        own = [place for place, flag in enumerate(segment.loss_mask) if flag]
        assert [place for place, _ in log] == own
        assert [segment.policy_versions[place] for place in own] == [version for _, version in log]
        assert [segment.sampled_logprobs[place] for place in own] == [-float(place) for place in own]
        assert iteration - 2 <= log[0][1] <= log[-1][1] <= iteration
    spread = {len({version for version in t.segments[0].policy_versions if version >= 0}) for t in episodes}
    assert max(spread) > 1  # some were really carried over
    for _ in range(500):  # a tool of one that is carried over may still be on its way
        num_answered = sum(trajectory.num_calls for trajectory in episodes)
        num_answered += sum(bool(carried["tool_events"]) for carried in open_episodes(bench.stream))
        if bench.asked == num_answered:
            break
        time.sleep(0.01)
    assert bench.asked == num_answered


def test_a_tool_that_was_asked_goes_on_while_no_token_is_sampled(make_bench):
    bench = make_bench(seconds=0.15)
    bench.carry_over_a_call(lambda: bench.asked)
    written = {seed: len(log) for seed, log in bench.engine.log.items()}
    time.sleep(0.3)
    assert {seed: len(log) for seed, log in bench.engine.log.items()} == written
    assert bench.stream.num_unfinished == 1
    for _ in range(1000):
        (waiting,) = open_episodes(bench.stream)
        if waiting["tool_events"]:
            break
        time.sleep(0.01)
    assert len(waiting["tool_events"]) == 1
    (late,) = bench.take()
    assert late.seed == waiting["seed"] and trajectory_to_json(late)["tool_events"] == waiting["tool_events"]
    assert late.tool_events[0].outcome is ToolOutcome.OK and late.stop_reason is StopReason.ANSWERED


class OwnLook(Look):
    """Belongs to one episode; its answer takes a while."""

    def __init__(self, log=None):
        super().__init__(0.1)
        self.log = [] if log is None else log

    def open(self, episode):
        self.log.append(f"opened for {episode.task.task_id}")
        return OwnLook(self.log)

    def close(self):
        self.log.append("closed")


def test_the_tool_of_an_episode_that_is_carried_over_stays_open_until_it_ends(make_bench):
    look = OwnLook()
    bench = make_bench(look=look)
    bench.carry_over_a_call(lambda: look.log)
    time.sleep(0.2)
    assert look.log == ["opened for t0"] and bench.stream.num_unfinished == 1
    (late,) = bench.take()
    assert late.tool_events[0].outcome is ToolOutcome.OK and look.log == ["opened for t0", "closed"]


def test_after_a_restart_an_episode_that_has_called_a_stateful_tool_begins_anew(make_bench):
    look = OwnLook()
    bench, other = (make_bench(deterministic=True, look=look) for _ in range(2))
    bench.begin(task(0, "500 slowly"), task(1, "500"), task(2, "50"))
    assert bench.take()[0].group == 2
    assert [bool(episode["tool_events"]) for episode in open_episodes(bench.stream)] == [True, False]
    bench.stream.pause()
    look.log.clear()
    other.engine.policy_version = 2
    other.stream.restore(bench.stream.state(), lambda position: task(position, "500 slowly" if not position else "500"))
    anew, played_on = sorted((other.take()[0] for _ in range(2)), key=lambda trajectory: trajectory.group)
    assert set(anew.segments[0].policy_versions) == {-1, 2} and look.log == ["opened for t0", "closed"]
    assert set(played_on.segments[0].policy_versions) == {-1, 0, 2}
    bench.stream.drop()
    assert look.log == ["opened for t0", "closed", "closed"]


def test_the_group_with_the_earliest_deadline_is_taken_first_and_has_its_place(make_bench):
    bench = make_bench(max_staleness=1)
    bench.begin(task(0, "5"), task(1, "205"))
    assert bench.take()[0].group == 0
    bench.stream.pause()
    bench.engine.policy_version += 1
    assert bench.stream.deadlines == [1]
    bench.begin(task(2, "5"))
    assert bench.stream.take(1, 1)[0][0].group == 1  # the only place of batch 1 is for it, though the other is finished
    assert (bench.stream.num_open, bench.stream.deadlines) == (1, [2])


def test_deterministic_interruption_follows_from_counts_whatever_the_tools_take(make_bench):
    quick, slow = (make_bench(deterministic=True, seconds=seconds) for seconds in (0.0, 0.03))
    first, second = (bench.iterate(4, tails) for bench in (quick, slow))
    assert [by_value(groups) for groups in first] == [by_value(groups) for groups in second]
    assert quick.engine.log == slow.engine.log


@pytest.mark.parametrize("num_before", [0, 1, 2, 3])
def test_a_restart_between_two_iterations_changes_nothing(num_before, make_bench):
    whole, before, after = (make_bench(deterministic=True) for _ in range(3))
    expected = whole.iterate(5, tails)
    found = before.iterate(num_before, tails)
    state = json.loads(json.dumps(before.stream.state(), allow_nan=False))
    after.engine.policy_version = num_before
    after.stream.restore(state, tails)
    assert after.asked == 0
    once_more = after.stream.state()
    for one, other in zip(state["groups"], once_more["groups"], strict=True):
        assert [without_clocks(row) for row in one["episodes"]] == [without_clocks(row) for row in other["episodes"]]
    found += after.iterate(5 - num_before, tails)
    assert [by_value(groups) for groups in found] == [by_value(groups) for groups in expected]
    assert whole.asked == before.asked + after.asked


def test_a_batch_tells_whether_it_has_a_group_from_before_the_restart(make_bench):
    bench, other = make_bench(), make_bench()
    bench.begin(task(0, "5"))
    assert bench.take()[0].group == 0 and not bench.stream.is_restored
    state = bench.stream.state(with_taken=True)
    other.stream.restore(state, tails)
    other.begin(task(1, "5"))
    assert {other.take()[0].group for _ in range(2)} == {0, 1} and other.stream.is_restored
    other.stream.begin_batch(1)
    other.begin(task(2, "5"))
    assert other.take()[0].group == 2 and not other.stream.is_restored


def test_a_tool_that_was_under_way_is_asked_again_after_a_restart(make_bench):
    bench, other = make_bench(seconds=0.3), make_bench()
    bench.carry_over_a_call(lambda: bench.asked)
    other.stream.restore(bench.stream.state(), tails)
    (again,) = other.take()
    assert other.asked == 1 and len(again.tool_events) == 1 and again.stop_reason is StopReason.ANSWERED
    assert {place for place, _ in bench.engine.log[again.seed]}.isdisjoint(p for p, _ in other.engine.log[again.seed])


SYSTEM = {"role": "system", "content": "Be brief."}
STARTS = [task(0, "500"), task(0, "400"), replace(task(0, "500"), before=(SYSTEM,))]


@pytest.mark.parametrize("start", STARTS, ids=["the same", "another prompt", "other messages before it"])
def test_an_environment_with_a_state_begins_anew_from_the_same_start_or_with_its_whole_group(start, make_bench):
    bench, other = (make_bench(deterministic=True, environment=Stateful) for _ in range(2))
    bench.begin(task(0, "500"), task(1, "5"), group_size=2)
    bench.take()
    bench.stream.pause()
    state = bench.stream.state()
    row = state["groups"][0]
    row["episodes"][0] |= {"reward": {"parts": {"kept": 1.0}, "turns": []}, "stop_reason": "answered"}
    drawn = []

    def draw(position):
        drawn.append(position)
        return start

    other.engine.policy_version = 2
    other.stream.restore(state, draw)
    first, second = other.take()
    num_sampled = 401 if "400" in start.prompt else 501
    assert drawn == [0] and second.num_sampled == num_sampled
    assert [first.reward.parts, first.segments[0].policy_versions[-1]] == (
        [{"kept": 1.0}, 0] if start is STARTS[0] else [{"length": num_sampled}, 2]
    )
    assert set(second.segments[0].policy_versions) == {-1, 2}
    assert [first.seed, second.seed] == [episode["seed"] for episode in row["episodes"]]


def test_an_environment_that_cannot_be_made_fails_its_episode_alone(make_bench):
    class Broken(Question):
        def __init__(self):
            raise RuntimeError("no world")

    bench = make_bench(environment=Broken)
    bench.begin(task(0, "5"), group_size=2)
    failed = bench.take()
    assert [(t.stop_reason, t.error) for t in failed] == [(StopReason.FAILED, "RuntimeError: no world")] * 2
    assert bench.stream.num_open == 0


def test_waiting_for_nothing_is_an_error_and_so_is_a_prompt_that_cannot_be_rendered(make_bench):
    bench = make_bench()
    with pytest.raises(EngineError, match="start one first"):
        bench.take()
    bench.stream.drop()
    with pytest.raises(SettingsError, match="unknown role"):
        bench.begin(Task(task_id="t", prompt="5", answer="", before=({"role": "nobody", "content": ""},)))
    assert (bench.stream.next_position, bench.stream.num_open) == (0, 0)


def test_dropping_ends_all_and_leaves_no_task_behind(make_bench):
    bench = make_bench(seconds=0.05)
    bench.begin(*(task(number, "900 slowly") for number in range(4)), group_size=2)
    bench.begin(task(9, "3"))
    bench.take()
    bench.stream.pause()
    bench.stream.drop()
    assert (bench.stream.num_open, bench.stream.num_unfinished) == (0, 0)
    assert bench.engine.open_episodes == set()


@pytest.mark.parametrize("blocks_the_loop", [False, True])
def test_an_engine_without_a_token_is_named_within_its_limit_and_its_episodes_can_be_dropped(
    blocks_the_loop, make_bench
):
    bench, released = make_bench(silence_seconds=0.5), threading.Event()

    async def never(*arguments, stopper, **options):
        stopper.feed(0)  # with a token, an interruption waits for the next one
        if blocks_the_loop:
            released.wait()
        await asyncio.Event().wait()

    bench.engine.sample = never
    bench.begin(task(0, "5"), group_size=2)
    words = r"sampled no token for 0.5 s, and episodes wait for one; raise ray.silence_timeout_seconds"
    for wait in (bench.take, bench.stream.pause):
        with pytest.raises(EngineError, match=words):
            wait()
    released.set()
    bench.stream.drop()
    assert (bench.stream.num_open, bench.stream.num_unfinished) == (0, 0)


def test_a_tool_that_takes_longer_than_the_engines_limit_is_waited_for(make_bench):
    bench = make_bench(seconds=2.5, silence_seconds=0.5)
    bench.begin(task(0, "5 slowly"))
    assert bench.take()[0].tool_events[0].outcome is ToolOutcome.OK


def test_seconds_in_which_every_episode_waits_for_its_tool_are_waiting(make_bench):
    changes = {"adv_estimator": "reinforce_plus_plus", "batch_size": 4, "group_size": 1, "max_staleness": 2}
    config, stream = RecipeConfig(training=changes).frozen(), make_bench(seconds=0.5).stream
    tasks = SimpleNamespace(draw=lambda position, _: [task(position, "5 slowly")])
    played = collect(SimpleNamespace(stream=stream), tasks, config, 0, num_left=0)
    assert 0.45 <= played.metrics["time/waiting"] < played.data.seconds
    ends = 4  # the engine ends an episode without asking the stopper
    assert stream.engine.num_tokens == sum(trajectory.num_sampled for trajectory in played.data) - ends


def test_a_batch_that_was_put_back_is_open_to_a_later_iteration_if_its_own_was_done_with_other_episodes(make_bench):
    bench = make_bench()
    bench.stream.begin_batch(0)
    bench.begin(task(0, "5"), task(1, "5"))
    assert sorted(group[0].group for group in bench.stream.take(0, 2)) == [0, 1]
    bench.stream.put_back()
    bench.engine.policy_version = 1
    bench.stream.begin_batch(1)
    assert sorted(group[0].group for group in bench.stream.take(1, 2)) == [0, 1]


@pytest.mark.parametrize("deterministic", [False, True])
def test_tasks_that_take_six_times_longer_are_a_tenth_of_what_is_trained_on(deterministic, make_bench):
    """A random tenth. Within two standard errors, and no group starts again."""
    bench, num_iters = make_bench(deterministic=deterministic), 50
    slow = {position for position in range(300) if random.Random(position).random() < 0.1}
    done = bench.iterate(num_iters, lambda position: task(position, str(300 if position in slow else 50)), group_size=1)
    groups = [group[0].group for found in done for group in found]
    assert len(groups) == 4 * num_iters and bench.stream.num_dropped == 0
    share = sum(group in slow for group in groups) / len(groups)
    assert abs(share - 0.1) <= 2 * (0.1 * 0.9 / len(groups)) ** 0.5

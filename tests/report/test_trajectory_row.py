from collections.abc import Callable

from midthought.report.recorded_episodes import trajectory_row
from midthought.types import Completion, Finish, Task, Trajectory


def decode(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def test_the_row_tells_who_wrote_what_in_order(make_episode: Callable[..., Trajectory]) -> None:
    episode = make_episode(3, calls=True, right=True)
    row = trajectory_row(episode, decode, step=40, arm="after", exact_match=True)
    assert [span["kind"] for span in row["spans"]] == ["prompt", "policy", "tool", "policy"]
    assert "".join(span["text"] for span in row["spans"]) == decode(episode.token_ids)
    assert sum(span["num_tokens"] for span in row["spans"]) == len(episode.token_ids)
    assert row["spans"][1]["text"].endswith('#call memory {"query": "the tide clock runs 3 minutes slow"}')
    assert (row["task_id"], row["arm"], row["step"], row["answer"]) == ("who-003", "after", 40, "Dov Lindqvist")
    assert row["reward"] == {"total": 1.05, "parts": {"correct": 1.0, "format": 0.1, "call_cost": -0.05}}
    assert (row["num_calls"], row["stop_reason"], row["error"], row["policy_version"]) == (1, "answered", None, 0)


def test_the_row_holds_each_call_as_it_happened(make_episode: Callable[..., Trajectory]) -> None:
    (event,) = trajectory_row(make_episode(0, calls=True, right=True), decode, step=0, arm="a")["events"]
    assert event["tool_name"] == "memory" and event["outcome"] == "ok"
    assert event["parameters"] == {"query": "the tide clock runs 0 minutes slow"}
    assert event["metadata"] == {"chunk_ids": ["e4-17", "e4-18"]}
    assert [name for name in event if name.startswith("time/")] == ["time/seconds"] and event["time/seconds"] == 0.0123


def test_later_segments_follow_each_with_its_prompt() -> None:
    trajectory = Trajectory(Task(task_id="t", prompt="?", answer="x"), [65])
    trajectory.add_sampled(Completion(token_ids=(66,), sampled_logprobs=(-1.0,), finish=Finish.LENGTH))
    trajectory.begin_segment([67])
    row = trajectory_row(trajectory, decode, step=0, arm="train")
    assert [(span["kind"], span["text"]) for span in row["spans"]] == [
        ("prompt", "A"),
        ("policy", "B"),
        ("prompt", "C"),
    ]
    assert row["reward"] is None and row["exact_match"] is None and row["stop_reason"] is None

"""`midthought evaluate`: any policy through the recipe's evaluation, with the figures that its own run gave."""

from __future__ import annotations

import io
import json
import shutil
import signal
from pathlib import Path

import pytest
from small_runs import (
    PODCAST,
    SHORT_TRANSCRIPTS,
    small_embedding_model,
    start,
    stop_at,
    summary,
    trajectories,
    write_short_transcripts,
)

from midthought.errors import ModelPathError, SettingsError
from midthought.recipes import find_recipe
from midthought.recipes.served_run import open_run
from midthought.report.console import Console
from midthought.report.recorded_episodes import trajectory_row
from midthought.serve.chat_answer import ChatAnswers, ChatRequest
from midthought.serve.chat_messages import checked_messages

SHORT = [word for word in PODCAST if not word.startswith("evaluation.sampled")]
SHORT += ["training.num_train_iters=1", "training.validate_every=10", "warmup.num_steps=2"]
SHORT += ["evaluation.control_arms=[clean]"]


REQUIRED = """before.exact_match after.unfinished before.oracle.exact_match after.exact_match after.tool_off.exact_match
    after.shuffled.exact_match after.oracle.exact_match after.no_memory.exact_match after.constant_guess
    after.call_rate_needed after.call_rate_needless num_questions seconds peak_rss_mib seed"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "trained"
    find_recipe("podcast").run(path, Console(quiet=True), words=[*SHORT, small_embedding_model()])
    return path


def test_a_served_answer_with_the_runs_tool_is_that_of_the_evaluation(trained):
    opened = open_run(trained)
    assert opened.policy.executor.registry.names() == ["memory_retrieval"]
    answers, decode = ChatAnswers(opened.policy), opened.policy.renderer.decode
    with opened.engine as engine:
        for row in [row for row in trajectories(trained) if row["arm"] == "after"][:3]:
            asked = checked_messages([{"role": "user", "content": row["question"]}])
            answer = engine.run(answers.answer(ChatRequest(messages=asked, sampling={"temperature": 0})))
            assert trajectory_row(answer.trajectory, decode, step=0, arm="")["spans"] == row["spans"]


def test_learning_from_a_warmup_needs_its_prompts_and_tools(trained, tmp_path):
    def learn(*more, stage="rl", **options):
        words = [*SHORT, small_embedding_model(), "memory.k=2", "evaluation.control_arms=[]", *more]
        options |= {"words": words, "stage": stage, "from_path": trained}
        find_recipe("podcast").run(tmp_path / "rl", Console(quiet=True), **options)

    message = r"tools\.memory_retrieval: .*'default': 1.* before, .*'default': 2.* now\nGive"
    with pytest.raises(SettingsError, match=message):
        learn()
    with pytest.raises(SettingsError, match=r"tools\.memory_retrieval: "):
        learn("warmup.num_steps=0", stage="all")
    assert not (tmp_path / "rl" / "config.yaml").exists()
    learn(allow_changes=True)


def test_the_summary_has_its_keys_and_the_arm_of_clean_demonstrations_is_measured_and_recorded(trained):
    found = summary(trained)
    assert set(REQUIRED.split()) <= found.keys() and found["num_questions"] == 8
    assert 0 <= found["arms.clean.exact_match"] <= 1 and found["arms.clean.num_steps"] >= 1
    assert "control_arms:\n  - clean" in (trained / "config.yaml").read_text()


def evaluate(model: Path | None, path: Path, *words: str) -> dict[str, object]:
    recipe = find_recipe("podcast")
    return recipe.run(path, Console(quiet=True), words=words, stage="evaluate", from_path=model)


def test_a_run_is_evaluated_with_its_own_settings_and_gives_its_own_figures(trained, tmp_path):
    evaluate(trained, tmp_path / "again")
    own, again = summary(trained), summary(tmp_path / "again")
    figures = {key for key in own if key.startswith("after.")}
    assert figures and {key: again[key] for key in figures} == {key: own[key] for key in figures}
    assert not any(key.startswith("before.") for key in again)
    assert (tmp_path / "again" / "report.html").is_file() and (tmp_path / "again" / "trajectories.jsonl").is_file()


def test_a_checkpoint_is_found_to_belong_to_its_run_and_a_setting_can_be_changed(trained, tmp_path):
    checkpoint = sorted((trained / "checkpoints" / "ppo" / "checkpoints").iterdir())[-1] / "policy"
    assert evaluate(checkpoint, tmp_path / "again", "questions.num_test=4")["num_questions"] == 4
    own, again = ((path / "config.yaml").read_text() for path in (trained, tmp_path / "again"))
    assert again == own.replace("num_test: 8", "num_test: 4")


def test_an_oracle_whose_results_are_cut_is_told(trained, tmp_path):
    said, words = io.StringIO(), ["inference.max_result_tokens=8", "questions.num_test=4"]
    recipe, console = find_recipe("podcast"), Console(out=said, err=said)
    recipe.run(tmp_path / "again", console, words=words, stage="evaluate", from_path=trained)
    told = " ".join(said.getvalue().split())
    assert "The evidence of 4 of 4 test questions is longer than inference.max_result_tokens=8; raise it" in told


def test_a_model_from_elsewhere_is_told_of_the_tool(trained, tmp_path):
    model = shutil.copytree(trained / "policy", tmp_path / "elsewhere/model")
    words = [SHORT_TRANSCRIPTS, small_embedding_model(), "questions.num_train=40", "questions.num_test=4"]
    words += ["questions.num_test_no_memory=2", "inference.max_tokens=16", "memory.chunking=turns"]
    evaluate(model, tmp_path / "again", *words)
    first, *_ = trajectories(tmp_path / "again")
    assert "#call memory_retrieval" in json.dumps(first["spans"][0])


def test_a_policy_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelPathError, match="nowhere"):
        evaluate(tmp_path / "nowhere", tmp_path / "again", SHORT_TRANSCRIPTS)
    with pytest.raises(SettingsError, match="nothing to evaluate"):
        evaluate(None, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_a_warm_up_does_not_continue_with_another_tokenizer(tmp_path: Path) -> None:
    texts = write_short_transcripts(tmp_path / "texts")
    run, words = tmp_path / "run", [*PODCAST, f"memory.transcripts={texts}"]
    assert stop_at(start("podcast", run, *words), run, 13, signal.SIGINT) == 130
    for path in texts.glob("*.md"):
        path.write_text(path.read_text().replace("the ", "zymurgy "))
    again = start("podcast", run, "--resume", "--allow-changes")
    assert again.wait() != 0 and "has another tokenizer than this trainer" in again.errors

"""The README's training program runs as written, with a tiny model in place of the real one. How much such a program learns:
`python -m benchmarks.short_form`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from midthought.models.pretrained import save_model
from midthought.models.small_model import make_policy, make_tokenizer

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_program_runs_and_saves_its_model(tmp_path, monkeypatch):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)
    assert program.count('algorithm="grpo"') == program.count("num_epochs=10") == 1
    shorter = program.replace('algorithm="grpo"', 'algorithm="grpo", max_tokens=48, batch_size=16, num_train_iters=2')
    shorter = shorter.replace("num_epochs=10", "")
    monkeypatch.chdir(tmp_path)
    before_training, _, training = shorter.partition("trainer = ")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(before_training, "README.md", "exec"), names)
    (model,) = re.findall(r'model="(.*?)"', training)
    tokenizer = make_tokenizer(["What is 12 times 23?"] * 20, 400)
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "max_length": 1024}
    save_model(make_policy(tokenizer, **sizes, seed=0), tokenizer, Path(model))
    exec(compile(f"trainer = {training}", "README.md", "exec"), names)
    assert [metrics["iteration"] for metrics in names["trainer"].metrics_history] == [1, 2]
    assert (tmp_path / "run" / "policy" / "config.json").exists()

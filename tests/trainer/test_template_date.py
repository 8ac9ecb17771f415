"""Chat templates that write today's date: a run keeps the date of its first start."""

import copy
import datetime
from types import SimpleNamespace

import pytest
from published_templates import FOLDER, PUBLISHED
from small_environments import QUESTIONS, settings

from midthought import Trainer
from midthought.models.small_model import make_policy
from midthought.plan import choices
from midthought.recipes.served_run import open_run
from midthought.tokenization import Renderer

LLAMA_3_2 = (
    '{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}'
    '{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}'
) + (FOLDER / "llama3_1.jinja").read_text("utf-8")
GPT_OSS = (
    "{%- macro system() -%}{{ 'Current date: ' + strftime_now( format='%Y-%m-%d' ) }}{%- endmacro -%}"
    "{{ system() }}{% for message in messages %}{{ message.content }}{% endfor %}"
)
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def llama():
    tokenizer = next(each for each in PUBLISHED if each.name == "llama3_1").tokenizer()
    tokenizer.chat_template = LLAMA_3_2
    return make_policy(tokenizer, hidden_size=64, num_layers=2, num_heads=2, max_length=512, seed=0), tokenizer


@pytest.mark.parametrize(
    ("template", "written"), [(LLAMA_3_2, "Today Date: 01 Mar 2026"), (GPT_OSS, "Current date: 2026-03-01")]
)
def test_a_template_writes_the_date_that_is_given(llama, template, written):
    tokenizer = copy.deepcopy(llama[1])
    tokenizer.chat_template = template
    renderer = Renderer(tokenizer, {"strftime_now": datetime.date(2026, 3, 1)})
    for each in (renderer, renderer.with_tools([{"type": "function", "function": {"name": "f"}}])):
        assert written in each.decode(each.prompt(MESSAGES))
    now = Renderer(tokenizer)
    assert now.decode(now.prompt(MESSAGES)) == tokenizer.apply_chat_template(
        MESSAGES, tokenize=False, add_generation_prompt=True
    )


def test_a_resumed_run_and_its_served_policy_have_the_date_of_the_first_start(llama, tmp_path, monkeypatch):
    def started(day, run, **options):
        monkeypatch.setattr(choices, "date", SimpleNamespace(today=lambda: datetime.date(2026, 3, day)))
        options |= {"model": copy.deepcopy(llama[0]), "tokenizer": llama[1], "run_path": tmp_path / run}
        with Trainer(settings(num_train_iters=1), dataset=QUESTIONS, **options) as trainer:
            if not options.get("resume"):
                trainer.sft([[*MESSAGES, {"role": "assistant", "content": "red"}]], num_steps=1, batch_tokens=64)
                trainer.fit()
            return trainer.renderer.decode(trainer.renderer.prompt(MESSAGES))

    first = started(1, "run")
    assert "Today Date: 01 Mar 2026" in first
    assert "Today Date: 02 Mar 2026" in started(2, "other")
    assert started(2, "run", resume=True) == first
    renderer = open_run(tmp_path / "run").policy.renderer
    assert renderer.decode(renderer.prompt(MESSAGES)) == first

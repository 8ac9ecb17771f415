"""Chat templates whose calls differ in one way from those of tests/chat_templates: read exactly, or refused with the reason."""

import pytest
from playing import Add, play_turns
from small_tokenizer import small_tokenizer

from midthought.rollout.demonstration import demonstration
from midthought.tokenization import Renderer
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.types import Task

ARGUMENTS = '{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}'
TAGS = ("<call>", "</call>", "<result>", "<assistant>", "[THINK]", "[/THINK]")
USER = {"role": "user", "content": "Add."}


def template(call: str, end: str, result: str = "<result>{{ m.content }}", answer_end: str = "<|im_end|>") -> str:
    """`call`: one call; `end`: of a turn with calls."""
    calls = "{% for call in m.tool_calls %}" + call + "{% endfor %}" + end
    return (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>"
        f"{{% elif m.role == 'tool' %}}{result}{{% elif m.tool_calls %}}<assistant>{calls}"
        f"{{% else %}}<assistant>{{{{ m.content }}}}{answer_end}{{% endif %}}{{% endfor %}}"
        "{% if add_generation_prompt and messages[-1].role == 'user' %}<assistant>{% endif %}"
    )


def tagged(value: str) -> str:
    """A call with each argument between tags."""
    pair = f"<key>{{{{ key }}}}</key><value>{value}</value>"
    pairs = f"{{% for key, value in call.function.arguments.items() %}}{pair}{{% endfor %}}"
    return f"<call>{{{{ call.function.name }}}}{pairs}</call>"


BARE = template(f"<call>{ARGUMENTS}</call>", "<|im_end|>")


@pytest.mark.parametrize(
    ("made", "ends"),
    [
        (template(f"<call>{ARGUMENTS}</call>", "", "[{{ m.content }}]", ""), "</call><|im_start|>"),  # as Apertus
        (template(f"<call>{ARGUMENTS}</call>", "<|im_end|><|im_start|>"), "<|im_end|>"),
    ],
    ids=["no end of a turn", "the beginning of the next turn"],
)
def test_a_turn_with_a_call_ends_where_its_result_follows(made: str, ends: str) -> None:
    tokenizer = small_tokenizer(made, tags=TAGS)
    choice = choose_call_format(Renderer(tokenizer), [Add.definition])
    assert choice.renderer.eos_token_ids == {*choice.renderer.control(ends), tokenizer.eos_token_id}
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    said = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    expected = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True) + "3."
    turn = f'<call>{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}</call>{"<|im_end|>" * ("</call>" not in ends)}'
    played = play_turns(
        [turn, "3.<|im_end|>"],
        choice.renderer,
        call_format=choice.call_format,
        tools=[Add()],
        messages=lambda _: [USER],
    )
    assert [event.call.result for event in played.tool_events] == ["3"]
    assert choice.renderer.decode(played.token_ids) == f"{expected}<|im_end|>"


def test_results_are_numbered_as_the_template_numbers_them_by_the_ids_of_all_calls() -> None:
    """As Command A."""
    ids = "messages | selectattr('tool_calls', 'defined') | map(attribute='tool_calls') | sum(start=[]) | map(attribute='id')"
    result = f"{{% set ids = {ids} | list %}}<result>{{{{ ids.index(m.tool_call_id) }}}}:{{{{ m.content }}}}<assistant>"
    choice = choose_call_format(
        Renderer(small_tokenizer(template(f"<call>{ARGUMENTS}</call>", "<|im_end|>", result), tags=TAGS)), []
    )
    turn = choice.call_format.render_call("add", {"a": 1, "b": 2}) + "<|im_end|>"
    options = {"call_format": choice.call_format, "tools": [Add()], "messages": lambda _: [USER]}
    played = choice.renderer.decode(play_turns([turn, turn, "3.<|im_end|>"], choice.renderer, **options).token_ids)
    assert "<result>0:3" in played and "<result>1:3" in played


@pytest.mark.parametrize("opening", ["<user>", "<|im_start|>"])
def test_a_reply_keeps_its_beginning_if_only_the_last_answer_has_an_end(opening: str) -> None:
    """As Metharme; and a template in which every message begins in the same way."""
    made = (
        f"{{% for m in messages %}}{{{{ '{opening}' if m.role == 'user' else '{opening.replace('user', 'model')}' }}}}"
        f"{{{{ m.content }}}}{{% endfor %}}{{{{ '{opening.replace('user', 'model')}' if add_generation_prompt else eos_token }}}}"
    )
    tokenizer = small_tokenizer(made, tags=["<user>", "<model>"])
    played = play_turns(["3.<|im_end|>", "4.<|im_end|>"], Renderer(tokenizer), replies=["And?"])
    said = [{"role": role, "content": text} for role, text in (("user", "Who?"), ("assistant", "3."), ("user", "And?"))]
    expected = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert Renderer(tokenizer).decode(played.token_ids).replace("<|im_end|>", "") == f"{expected}4."


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (template("<call>{{ call.id }}: " + ARGUMENTS + "</call>", "<|im_end|>"), "in a form that is not supported"),
        (template(tagged("{{ value | e }}"), "<|im_end|>"), "in a form that is not supported"),
        (template(f"[CALL]{ARGUMENTS}[END]", "", "[RESULT]{{ m.content }}"), "does not mark the end of a call"),
    ],
    ids=["an id before the object", "escaped values", "no control token after a call"],
)
def test_calls_that_would_be_read_or_continued_wrongly_are_refused_with_the_reason(made: str, reason: str) -> None:
    choice = choose_call_format(Renderer(small_tokenizer(made, tags=TAGS)), [Add.definition])
    assert choice.call_format.name == "in_thought" and reason in choice.reason


def test_a_call_begins_where_the_prompt_ends_also_if_answers_begin_in_another_way() -> None:
    made = template(ARGUMENTS, "<|im_end|>").replace("<assistant>", "{{ '\\n' }}<assistant>")
    made = made.replace("{% else %}{{ '\\n' }}", "{% else %}")
    choice = choose_call_format(Renderer(small_tokenizer(made, tags=TAGS)), [Add.definition])
    (call,) = choice.call_format.parse_all('{"name": "add", "arguments": {"a": 1, "b": 2}}')
    assert (call.tool_name, call.parameters) == ("add", {"a": 1, "b": 2})


def test_a_text_that_is_character_data_of_xml_is_written_and_read_as_the_template_does() -> None:
    is_escaped = "value is string and ('<' in value or '&' in value or '\\n' in value)"
    value = f"{{% if {is_escaped} %}}<![CDATA[{{{{ value }}}}]]>{{% else %}}{{{{ value }}}}{{% endif %}}"
    choice = choose_call_format(Renderer(small_tokenizer(template(tagged(value), "<|im_end|>"), tags=TAGS)), [])
    written = choice.call_format.render_call("look", {"word": "a\n<b> </value>", "other": "c"})
    assert (
        written
        == "<call>look<key>word</key><value><![CDATA[a\n<b> </value>]]></value><key>other</key><value>c</value></call>"
    )
    for text in (written, written.replace("</key><value>", "</key>\n<value>").replace("look<key>", "look\n<key>")):
        (call,) = choice.call_format.parse_all(text)
        assert (call.tool_name, call.parameters) == ("look", {"word": "a\n<b> </value>", "other": "c"})
    text = choice.call_format.render_call("look", {"word": "a <key>b</key> c"})
    (call,) = choice.call_format.parse_all(text)
    assert (call.error, call.parameters) == (None, {"word": "a <key>b</key> c"})
    (call,) = choice.call_format.parse_all(text.replace("c]]></value>", "c"))
    assert "an argument is not closed" in str(call.error)


def test_a_thought_that_is_a_block_of_the_content_is_written_and_read_as_the_template_does() -> None:
    thought = "{% if each.type == 'thinking' %}[THINK]{{ each.thinking }}[/THINK]{% else %}{{ each.text }}{% endif %}"
    blocks = f"{{% for each in m.content %}}{thought}{{% endfor %}}"  # as Mistral
    answer = f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{blocks}{{% endif %}}"
    made = BARE.replace("<assistant>{{ m.content }}", f"<assistant>{answer}")
    choice = choose_call_format(Renderer(small_tokenizer(made, tags=TAGS)), [])
    said = [USER, {"role": "assistant", "content": "3.", "reasoning_content": "Hm."}]
    shown = demonstration(Task(task_id="t", prompt="", answer=""), said, choice.renderer, choice.call_format)
    (run,) = shown.sampled_runs()
    assert choice.renderer.decode(run) == "[THINK]Hm.[/THINK]3.<|im_end|>"
    played = play_turns([run], choice.renderer, call_format=choice.call_format, messages=lambda _: [USER])
    assert played.turns[-1].answer == "3." and played.token_ids == shown.token_ids
    silent = choice.renderer.chat_template.text([USER, {**said[1], "content": None}])
    assert silent.endswith("<assistant>[THINK]Hm.[/THINK]<|im_end|>")


def test_an_answer_after_a_thought_that_the_prompt_opens_is_not_marked_by_the_end_of_that_thought() -> None:
    """As GLM 4.7: an answer without a thought does not continue the prompt."""
    thought = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}{% endif %}</think>{{ m.content }}"
    made = BARE.replace("<assistant>{{ m.content }}", f"<assistant>{thought}")
    made = made.replace("<assistant>{% endif %}", "<assistant><think>{% endif %}")
    choice = choose_call_format(Renderer(small_tokenizer(made, tags=TAGS)), [])
    assert isinstance(choice.call_format, NativeCallFormat)
    assert choice.call_format.syntax.around_answer == ("", "")
    for opening, closing, is_read in (("[THINK]", "[/THINK]", True), ("Thought:", "Answer:", False)):
        other = made.replace("<think>", opening).replace("{% endif %}</think>", closing + "{% endif %}")
        choice = choose_call_format(Renderer(small_tokenizer(other, tags=TAGS)), [])
        assert isinstance(choice.call_format, NativeCallFormat)
        assert choice.call_format.syntax.around_answer == ("" if is_read else closing, "")
        played = play_turns([f"Hm.{closing}3.<|im_end|>"], choice.renderer, call_format=choice.call_format)
        assert played.turns[-1].answer == "3."


def test_a_system_message_before_the_last_question_does_not_take_the_place_of_the_answer() -> None:
    """As Mistral: what ends the answer and begins the message stands before that text."""
    last = "{% if loop.last %}<result>{{ messages[0].content }}, {{ messages | length }}. {% endif %}"
    made = BARE.replace("'user' %}<|im_start|>", f"'user' %}}<|im_start|>{last}")
    made = made.replace("{% elif m.role == 'tool'", "{% elif m.role == 'system' %}{% elif m.role == 'tool'")
    choice = choose_call_format(Renderer(small_tokenizer(made, tags=TAGS)), [])
    said = [{"role": "system", "content": "Brief"}, USER]
    options = {"call_format": choice.call_format, "messages": lambda _: said, "replies": ["And?"]}
    played = play_turns(["3.<|im_end|>", "4.<|im_end|>"], choice.renderer, **options)
    assert choice.renderer.decode(played.token_ids) == (
        "<|im_start|><result>Brief, 2. Add.<|im_end|><assistant>3.<|im_end|>"
        "<|im_start|><result>Brief, 4. And?<|im_end|><assistant>4.<|im_end|>"
    )

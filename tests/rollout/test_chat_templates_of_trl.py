"""The published chat templates that TRL contains, as an oracle for the detection and for the text around calls and results."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from small_tokenizer import small_backend
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from midthought.tokenization import Renderer
from midthought.tokenization.chat_template import as_tool_calls
from midthought.tools.call_formats.detection import choose_call_format
from midthought.tools.call_formats.native import NativeCallFormat
from midthought.tools.definition import ToolDefinition, ToolParameter
from midthought.types import ParsedAction, ToolCall, ToolEvent, ToolOutcome

TRL = importlib.util.find_spec("trl")
if TRL is None or TRL.origin is None:
    pytest.skip("needs TRL: make test-all", allow_module_level=True)
TEMPLATES = {path.stem: path for path in sorted((Path(TRL.origin).parent / "chat_templates").glob("*.jinja"))}

WITH = [
    *("deepseekv3", "glm4moe", "gptoss", "gemma4", "lfm2_v2", "llama3_1", "llama3_2", "nemotron_3_nano"),
    *("nemotron_3_super", "qwen2_5", "qwen3", "qwen3_5_think", "qwen3_6", "qwen3_instruct_2507", "qwen3_vl"),
]
WITHOUT = ("cohere", "gemma", "gemma3", "llama3", "phi3", "smolvlm")
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|return|>", "<｜end▁of▁sentence｜>"),
    *("<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<turn|>"),
)
TAGS = re.compile(
    r"<\|[^<>|]*\|?>|<[^<>|]*\|>|<｜[^<>｜]*｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<end_of_turn>"
)
TOOL = ToolDefinition("look_up", "Searches.", [ToolParameter("query", "string", "Words.")])
ARGUMENTS = {"query": 'the "tide"\nclock 水'}
USER = {"role": "user", "content": "What is there?"}


def renderer_of(name: str) -> Renderer:
    if name not in TEMPLATES:
        pytest.skip(f"this version of TRL has no template {name}")
    text = TEMPLATES[name].read_text("utf-8")
    eos = next((end for end in ENDS if end in text), "<|endoftext|>")
    backend = small_backend()
    names = [*dict.fromkeys([*sorted(TAGS.findall(text)), eos, "<s>"])]
    backend.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in names])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token="<s>")
    tokenizer.chat_template = text
    return Renderer(tokenizer)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_template_without_calls_falls_back(name: str) -> None:
    assert choose_call_format(renderer_of(name), [TOOL]).call_format.name == "in_thought"


@pytest.mark.parametrize("arguments", [ARGUMENTS, {}], ids=["arguments", "none"])
@pytest.mark.parametrize("name", WITH)
def test_a_call_and_its_result_are_written_as_the_template_writes_them(name: str, arguments: Any) -> None:
    choice = choose_call_format(renderer_of(name), [TOOL])
    call_format, renderer = choice.call_format, choice.renderer
    assert isinstance(call_format, NativeCallFormat)
    call_id = call_format.syntax.make_id("look_up", 0)
    answer = {"role": "assistant", "content": "", "tool_calls": as_tool_calls([("look_up", arguments, call_id)])}
    written = call_format.render_call("look_up", arguments)
    assert written in renderer.chat_template.text([USER, answer])
    (found,) = call_format.parse_all(written)
    assert (found.tool_name, found.parameters) == ("look_up", arguments)
    call = ParsedAction(tool_name="look_up", parameters=arguments)
    event = ToolEvent(call=ToolCall(tool_name="look_up", result='a "b"\n水'), outcome=ToolOutcome.OK)
    results = call_format.result_messages([call], [event], 0)
    after = renderer.following(results, [USER, answer])
    whole = renderer.prompt([USER, answer, *results])
    assert whole[-len(after) :] == after
    before = renderer.decode(whole[: -len(after)]).rstrip()
    assert any(before.endswith(written.lstrip() + end) for end in map(renderer.decode, zip(renderer.eos_token_ids)))

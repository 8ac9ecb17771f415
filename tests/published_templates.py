"""The chat templates of tests/chat_templates, with the control tokens of their models, on a small byte-level tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_tokenizer import small_backend
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "chat_templates"
THINK = ("<think>", "</think>")
TAGS = re.compile(
    r"<\|[^<>|\s{}']*\|?>|<[^<>|\s{}']*\|>|<｜[^<>｜\s]*｜>|\[/?[A-Z_]+\]|\[\|[a-z]+\|\]|</?(?:start_of_turn|end_of_turn|sop)>"
    r"|</?(?:seed:|minimax:)?(?:think|tool_call|tool_response|tool_result|arg_key|arg_value)>"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A chat template, and how a model with it writes."""

    name: str
    models: str
    """Models that use it."""
    more: Sequence[str] = ()
    """Control tokens that the template does not spell."""
    eos: str
    bos: str | None = None
    label: str | None
    """Name of the detected call format; None: none."""
    call_end: str = ""
    """Token with which the model ends a turn with calls; empty: `eos`."""
    answer_end: str = ""
    """Token with which the model ends an answer; empty: `eos`."""
    thought: str = ""
    """A thought before a call, `{}` in place of its text; empty: the template writes none."""
    before_answer: str = ""
    """What the model writes before an answer that follows a result: a thought (`{}` in place of its text), or a header."""
    is_parallel: bool = True
    """Whether a turn may have several calls."""

    @property
    def text(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text("utf-8")

    @property
    def tokens(self) -> list[str]:
        """Its control tokens."""
        return list(dict.fromkeys([*TAGS.findall(self.text), *self.more, self.eos, *filter(None, [self.bos])]))

    def tokenizer(self) -> Any:
        """Returns a new tokenizer with the template."""
        backend = small_backend()
        backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in self.tokens])
        made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=self.eos, bos_token=self.bos)
        made.chat_template = self.text
        return made


# fmt: off
PUBLISHED = [
    Published(name="qwen2_5", models="Qwen2.5, Hermes 2 Pro, Hermes 3", more=THINK, eos="<|im_end|>", label="hermes"),
    Published(name="qwen3", models="Qwen3", eos="<|im_end|>", label="hermes", thought="<think>\n{}\n</think>\n\n",
              before_answer="<think>\n\n</think>\n\n"),
    Published(name="qwen3_5", models="Qwen3.5, 3.6", eos="<|im_end|>", label="qwen3_coder",
              thought="{}\n</think>\n\n", before_answer="{}\n</think>\n\n"),
    Published(name="nemotron_3", models="Nemotron 3", eos="<|im_end|>", label="qwen3_coder",
              thought="{}\n</think>", before_answer="{}\n</think>\n"),
    Published(name="qwen3_coder", models="Qwen3-Coder", more=THINK, eos="<|im_end|>", label="qwen3_coder"),
    Published(name="llama3_1", models="Llama 3.1, 3.2, 3.3", more=("<|python_tag|>", "<|eom_id|>"), eos="<|eot_id|>",
              bos="<|begin_of_text|>", label="llama", is_parallel=False),
    Published(name="mistral_v3", models="Mistral 7B v0.3, Mixtral 8x22B", eos="</s>", bos="<s>", label="mistral",
              before_answer=" "),
    Published(name="mistral_v11", models="Mistral Small 3.1, 3.2", eos="</s>", bos="<s>", label="mistral"),
    Published(name="mistral_v13", models="Magistral, Devstral 2", more=("[CALL_ID]", "[TOOL_CONTENT]"), eos="</s>",
              bos="<s>", label="mistral"),
    Published(name="deepseek_v3", models="DeepSeek V3, R1", more=THINK, eos="<｜end▁of▁sentence｜>",
              bos="<｜begin▁of▁sentence｜>", label="deepseek"),
    Published(name="deepseek_v3_1", models="DeepSeek V3.1", eos="<｜end▁of▁sentence｜>",
              more=("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"), bos="<｜begin▁of▁sentence｜>", label="deepseek"),
    Published(name="dsml_deepseek_v3_2", models="DeepSeek V3.2", more=("｜DSML｜",), eos="<｜end▁of▁sentence｜>",
              bos="<｜begin▁of▁sentence｜>", label="deepseek"),
    Published(name="gpt_oss", models="gpt-oss", more=("<|constrain|>",), eos="<|return|>", label="harmony",
              call_end="<|call|>", thought="<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
              before_answer="<|channel|>final<|message|>", is_parallel=False),
    Published(name="glm_4_5", models="GLM-4.5, 4.6", more=("[gMASK]", "/nothink"), eos="<|endoftext|>", label="glm",
              call_end="<|observation|>", answer_end="<|user|>", thought="\n<think>{}</think>\n",
              before_answer="\n<think></think>\n"),
    Published(name="kimi_k2", models="Kimi K2", eos="<|im_end|>", label="kimi"),
    Published(name="granite_3_3", models="Granite 3.3", eos="<|end_of_text|>", label="tool_call_list"),
    Published(name="phi_4_mini", models="Phi-4-mini", more=("<|user|>",), eos="<|end|>", label="tool_call_list"),
    Published(name="command_r7b", models="Command R7B, Command A", eos="<|END_OF_TURN_TOKEN|>", bos="<BOS_TOKEN>",
              label="command_r", thought="<|START_THINKING|>{}<|END_THINKING|>", before_answer="<|START_RESPONSE|>",
              answer_end="<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    Published(name="minimax_m2", models="MiniMax-M2", more=("]~!b[", "]~b]"), eos="[e~[", label="minimax",
              thought="{}\n</think>\n\n", before_answer="{}\n</think>\n\n"),
    Published(name="hunyuan_a13b", models="Hunyuan-A13B", eos="<|eos|>", bos="<|startoftext|>", label="hunyuan"),
    Published(name="lfm2", models="LFM2", eos="<|im_end|>", bos="<|startoftext|>", label="python"),
    Published(name="lfm2_5", models="LFM2.5", eos="<|im_end|>", bos="<|startoftext|>", label="python",
              thought="<think>{}</think>"),
    Published(name="llama4_pythonic", models="Llama 4 (pythonic)", eos="<|eot|>", bos="<|begin_of_text|>",
              label="python"),
    Published(name="granite_4", models="Granite 4", eos="<|end_of_text|>", label="hermes"),
    Published(name="exaone_4", models="EXAONE 4 (without thoughts)", eos="[|endofturn|]", label="hermes",
              more=("<tool_response>", "</tool_response>", "[|user|]")),
    Published(name="seed_oss", models="Seed-OSS", more=("<seed:bos>",), eos="<seed:eos>", label="qwen3_coder"),
    Published(name="internlm2_5", models="InternLM 2.5, 3", eos="<|im_end|>", bos="<s>", label="template"),
    Published(name="functionary_3_1", models="Functionary 3.1", eos="<|eot_id|>", bos="<|begin_of_text|>",
              label="qwen3_coder", call_end="<|eom_id|>"),
    Published(name="xlam_2", models="xLAM 2", eos="<|im_end|>", label="llama"),
    Published(name="gemma_4", models="Gemma 4", eos="<turn|>", bos="<bos>", label="gemma",
              call_end="<|tool_response>", thought="<|channel>thought\n{}\n<channel|>"),
    Published(name="gemma_3", models="Gemma 3", eos="<end_of_turn>", bos="<bos>", label=None),
]
# fmt: on

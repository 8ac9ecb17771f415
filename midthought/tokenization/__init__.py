"""Converts between text and token ids: chat prompts, own text with control tokens, foreign text without control tokens.

Holds one tokenizer. Does not depend on models, calls or trajectories.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenizers import Encoding, Tokenizer

from midthought.errors import ForeignTextError, SettingsError
from midthought.tokenization.chat_template import PROBE_ID, ChatTemplate, Content, Message, as_tool_calls
from midthought.tokenization.decode_stream import (
    ByteStream,
    DecodeStream,
    Spellings,
    WindowStream,
    without_prefix,
    without_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT = " …[cut]"
"""Suffix of foreign text that was cut."""
_USER = {"role": "user", "content": "a"}
_ANSWERED = (_USER, {"role": "assistant", "content": "a"})
_CALL: Any = {"role": "assistant", "content": "", "tool_calls": as_tool_calls([("f", {"a": "a"}, PROBE_ID)])}
_RESULT = {"role": "tool", "content": "a", "name": "f", "tool_call_id": PROBE_ID}
_CHARACTERS_PER_TOKEN = 8
"""Characters of a long text that are encoded first, per requested token; most texts have 3 to 5 per token."""
_MIN_CHARACTERS = 256
"""Longer than a word that a tokenizer may replace as a whole (WordPiece: 100 characters)."""


class Renderer:
    """A fast Hugging Face tokenizer that encodes foreign text without control tokens.

    Foreign text (questions, transcripts, results, replies) is encoded by a copy of the tokenizer without added tokens,
    special or not: `</think>` in a transcript becomes plain pieces that spell it. Text is encoded unchanged: no token and
    no blank is prepended, even if the tokenizer would do so at the start of a text.

    Args:
        tokenizer: the tokenizer.
        chat_template_kwargs: further arguments of its chat template, such as `enable_thinking`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        if not hasattr(tokenizer, "is_fast"):
            raise SettingsError(f"tokenizer={tokenizer!r:.80}: give a loaded one, AutoTokenizer.from_pretrained(…)")
        if not tokenizer.is_fast:
            raise SettingsError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; use a model that has a tokenizer.json"
            )
        self.tokenizer = tokenizer
        self.chat_template = ChatTemplate(tokenizer, chat_template_kwargs or {})
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        added = {token["id"]: token["content"] for token in state["added_tokens"]}
        unknown = tokenizer.unk_token_id
        self.control_token_ids = frozenset(added) - {unknown}
        """Ids of all added tokens except the unknown token, which represents characters that the tokenizer lacks."""
        self._added = added
        self._is_byte_level = (state["decoder"] or {}).get("type") == "ByteLevel"
        plain = {**state, "truncation": None, "padding": None, "post_processor": None}
        plain |= {part: without_prefix(state[part]) for part in ("normalizer", "pre_tokenizer", "decoder")}
        self._control = Tokenizer.from_str(json.dumps(plain))
        self._spellings = Spellings(self._control)
        plain |= {"added_tokens": [], "model": without_tokens(state["model"], frozenset(added))}
        self._foreign = Tokenizer.from_str(json.dumps(plain))

    # -- to token ids ------------------------------------------------------------------------------------------

    def prompt(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Returns a conversation (`role`, `content`) in the chat template, each content as foreign text.

        These are the token ids of `apply_chat_template` if no content spells a control token. An answer may have `tool_calls`,
        a result `name` and `tool_call_id`. Without a chat template: the contents joined by newlines, and one more newline if
        `add_generation_prompt`.
        """
        parts = self.chat_template.parts(messages, add_generation_prompt=add_generation_prompt)
        return self._encode(self._flat(parts))

    def following(
        self, messages: Sequence[Message], history: Sequence[Message] = (), last: int | None = None
    ) -> list[int]:
        """Returns the chat template's tokens after an answer's end-of-sequence token: these messages, then the start of the next
        answer. Earlier messages are not encoded again, so a template that rewrites them has no effect.

        `last` is the answer's last token; None: the one with which the template ends it. If it is another one, the template's
        comes first; but not after one of `eos_token_ids` if the template ends only earlier answers with its own (gpt-oss).

        `history` ends with the answer. It matters only to templates that number calls or check the order of roles. If the
        template refuses several calls in one answer, the results follow the first one. Roles that the template rejects or omits
        (`tool`) are replaced by `user`.
        """
        history = history or _ANSWERED
        if len(history) > len(_ANSWERED) and self._needs_one_answer:
            history = (_USER, history[-1])
        as_user = [{"role": "user", "content": message["content"]} for message in messages]
        attempts = [(messages, history), (messages, (_USER, _called(history[-1], 1))), (as_user, history)]
        for following, said in attempts:
            try:
                return self._after_answer(following, said, last)
            except SettingsError as error:
                refusal = error
        raise refusal

    def _after_answer(self, messages: Sequence[Message], history: Sequence[Message], last: int | None) -> list[int]:
        said = [*history[:-1], _called(history[-1])]
        parts = self.chat_template.parts([*said, *messages], add_generation_prompt=True)
        contents = [(part.message, n) for n, part in enumerate(parts) if isinstance(part, Content)]
        answer = max(each for each in contents if each[0] < len(history))[1]  # Mistral: a system message follows it
        head = self._flat(parts[answer + 1 : answer + 2])
        ends = [index for index, piece in enumerate(head) if piece in self._ends_in_history]
        end = next((index for index in ends if head[index] in self.eos_token_ids), ends[0] if ends else -1)
        same = {head[end]} if ends and head[end] in self.eos_token_ids else self.eos_token_ids
        start = end + (not ends or last is None or last in same)
        return self._encode([*head[start:], *self._flat(parts[answer + 2 :])])

    @functools.cached_property
    def _needs_one_answer(self) -> bool:
        """Whether what follows an answer depends on no message before it; a long conversation then need not be rendered."""
        called, result = json.loads(json.dumps((_CALL, _RESULT)).replace(PROBE_ID, "callid002"))
        cases = [([_USER], _ANSWERED[1]), ([result], called), ([result, _USER], called)]
        earlier = ([_USER, _CALL, _RESULT], [_USER, _CALL, _RESULT, *_ANSWERED[1:], _USER])
        try:
            return all(
                self._after_answer(later, [*before, said], None) == self._after_answer(later, [_USER, said], None)
                for later, said in cases
                for before in earlier
            )
        except SettingsError:
            return False

    def answer(self, message: Message, history: Sequence[Message]) -> list[int]:
        """Returns the tokens that the policy would sample for this answer after `prompt(history)`: thought (`reasoning_content`),
        text, calls, and the token that ends the turn. Names of control tokens in the text become those tokens.

        Raises `SettingsError` if the template writes the answer in a form that does not continue the prompt.
        """
        pieces = self.split(self.chat_template.continuation(message, history))
        ends = [index for index, piece in enumerate(pieces) if piece in self.eos_token_ids]
        if ends:
            return self._encode(pieces[: ends[0] + 1])
        return [*self._encode(pieces), *(self._end_token(is_call=bool(message.get("tool_calls"))) or self.answer_end)]

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Renderer:
        """Returns a renderer whose chat template describes these tools (JSON Schemas as in OpenAI's `tools`).

        Raises `SettingsError` if a description spells a control token, because it becomes part of the template's own text.
        """
        written = json.dumps(list(tools), ensure_ascii=False)
        spelled = [content for content in self._added.values() if len(content) > 1 and content in written]
        if spelled:
            raise SettingsError(
                f"the description of a tool contains the control token {spelled[0]!r}; word it differently"
            )
        other = copy.copy(self)
        for name in ("only_appends", "eos_token_ids", "answer_end", "_ends_in_history", "_needs_one_answer"):
            other.__dict__.pop(name, None)
        other.chat_template = self.chat_template.with_tools(tools)
        return other

    @functools.cached_property
    def only_appends(self) -> bool:
        """Whether the chat template keeps earlier turns unchanged, including thoughts, when a turn is added."""
        spoken = [_USER, {"role": "assistant", "content": "<think>\nprobethought\n</think>\n\nc"}]
        if not self.chat_template.is_given:
            return True
        try:
            later = self.chat_template.text([*spoken, _USER])
            return "probethought" in later and later.startswith(self.chat_template.text(spoken).rstrip())
        except SettingsError:
            return False

    def foreign(self, text: str) -> list[int]:
        """Encodes foreign text; lone surrogates become question marks. Raises `ForeignTextError` if the result contains a control
        token."""
        token_ids = self._foreign.encode(_encodable(text), add_special_tokens=False).ids
        if not self.control_token_ids.isdisjoint(token_ids):
            found = sorted({self._added[token_id] for token_id in self.control_token_ids.intersection(token_ids)})
            raise ForeignTextError(
                f"foreign text became the control token {', '.join(map(repr, found))}: {text[:60]!r}; "
                "the tokenizer uses an ordinary character or piece as an added token"
            )
        return token_ids

    def truncate(self, text: str, max_tokens: int) -> str:
        """Returns the text if it has at most `max_tokens` tokens as foreign text, else its head and " …[cut]"."""
        head, encoding = self._beginning(text, max_tokens)
        if len(encoding.ids) <= max_tokens:
            return head
        cut = CUT if self._num_foreign(CUT) <= max_tokens else ""
        for num_kept in range(max_tokens - self._num_foreign(cut), -1, -1):
            shorter = head[: encoding.offsets[num_kept][0]] + cut
            if self._num_foreign(shorter) <= max_tokens:
                return shorter
        return ""

    def exceed(self, texts: Iterable[str], max_tokens: int) -> bool:
        """Whether foreign texts have more than `max_tokens` tokens together, without encoding all of a text that is much longer.

        A text with more characters than `max_tokens` of the longest tokens have counts as too long.
        """
        num_left = max_tokens
        for text in texts:
            if len(text) > max(num_left, 1) * self._longest_token:
                return True
            num_left -= len(self._beginning(text, max(num_left, 0))[1].ids)
            if num_left < 0:
                return True
        return False

    @functools.cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._control.get_vocab()), default=1)

    def _beginning(self, text: str, num_tokens: int) -> tuple[str, Encoding]:
        """Returns a head of the text and its encoding as foreign text: the whole text, or at least `num_tokens` + 1 tokens.

        They are also the first tokens of a head twice as long: what follows a head changes only its last tokens. Memory and time
        depend on `num_tokens`, except for a text without such a head.
        """
        length, before = max(_CHARACTERS_PER_TOKEN * (num_tokens + 1), _MIN_CHARACTERS), None
        while length < len(text):
            head = _encodable(text[:length])
            encoding = self._foreign.encode(head, add_special_tokens=False)
            first = encoding.ids[: num_tokens + 1]
            if len(first) > num_tokens and first == before:
                return head, encoding
            length, before = 2 * length, first
        text = _encodable(text)
        return text, self._foreign.encode(text, add_special_tokens=False)

    def control(self, text: str) -> list[int]:
        """Encodes own text: names of control tokens in it become control tokens."""
        return self._control.encode(text, add_special_tokens=False).ids

    def _num_foreign(self, text: str) -> int:
        return len(self._foreign.encode(text, add_special_tokens=False).ids)

    def _flat(self, parts: Sequence[str | Content]) -> list[int | str]:
        """Returns parts of a rendered conversation as control tokens (int) of the template, and other text."""
        pieces: list[int | str] = []
        split = functools.cache(self.split)  # a template writes the same between any two messages
        for part in parts:
            pieces += [part.text] if isinstance(part, Content) else split(part)
        return pieces

    def split(self, text: str) -> list[int | str]:
        """Splits own text into control tokens (int) and the text between them."""
        encoding = self._control.encode(text, add_special_tokens=False)
        pieces: list[int | str] = []
        end = 0
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.control_token_ids:
                pieces += [text[end:start], token_id]
                end = stop
        return [piece for piece in (*pieces, text[end:]) if piece != ""]

    def _encode(self, pieces: Sequence[int | str]) -> list[int]:
        """Encodes text between two control tokens as a whole, because a token may contain the end of one text and the start
        of the next one."""
        token_ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
            else:
                token_ids += [*self.foreign(text), piece]
                text = ""
        return token_ids + self.foreign(text)

    # -- from token ids ----------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, with control tokens spelled out and no clean-up of spaces."""
        return self._control.decode(list(token_ids), skip_special_tokens=False)

    def decode_stream(self) -> DecodeStream:
        """Returns a new stream that decodes token by token."""
        return ByteStream(self._spellings) if self._is_byte_level else WindowStream(self._control)

    def opens_thought(self, prompt_ids: Sequence[int], think_open: str = "<think>") -> bool:
        """Whether the prompt ends in an open thought (R1 templates), ignoring blanks.

        If the tokenizer has a token for `think_open`, only that token counts, not the same text in foreign text.
        """
        open_ids = [token_id for token_id, content in self._added.items() if content == think_open]
        if not open_ids:
            return self.decode(prompt_ids[-64:]).rstrip().endswith(think_open)
        last = next((token_id for token_id in reversed(prompt_ids) if self.decode([token_id]).strip()), None)
        return last in open_ids

    @functools.cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokenizer's end-of-sequence token, and the control tokens with which the chat template ends an answer and a turn
        with calls.

        If the template writes none, the answer ends with the first token of the next message (GLM), which the policy samples.
        """
        own = {self.tokenizer.eos_token_id} - {None}
        return frozenset(own.union(self._end_token(is_call=False), self._end_token(is_call=True)))

    @functools.cached_property
    def answer_end(self) -> list[int]:
        """The token that ends an answer: the chat template's, else the end-of-sequence token; empty if there is none."""
        eos_id = self.tokenizer.eos_token_id
        return self._end_token(is_call=False) or ([] if eos_id is None else [eos_id])

    def _end_token(self, *, is_call: bool) -> list[int]:
        """Returns the control token that ends an answer, or a turn with calls; empty if there is none."""
        eos_id, history = self.tokenizer.eos_token_id, (_USER, _CALL) if is_call else _ANSWERED
        written, later = self._controls(history, 1), self._controls([*history, _RESULT if is_call else _USER], 1)
        if not self._controls(_ANSWERED, 1):
            # The first token of the next message, or the last one of a call that its result follows at once (Apertus).
            return later[len(written) :][:1] or written[-1:]
        if not is_call:  # not a token that only the whole conversation ends with (Phi 3.5)
            written = [token for token in written if token in later] or written
        return [eos_id] if eos_id in written else written[-1:] if is_call else written[:1]

    @functools.cached_property
    def _ends_in_history(self) -> frozenset[int]:
        """`eos_token_ids`, and the token with which the template ends a user's message and each answer but the last (gpt-oss)."""
        end = self._controls([*_ANSWERED, _USER], 1)[:1]
        is_end = end == self._controls([_USER], 0, prompt=True)[:1] and end != self._controls([_USER], -1)[:1]
        return self.eos_token_ids.union(end if is_end else ())

    def _controls(self, messages: Sequence[Message], number: int, *, prompt: bool = False) -> list[int]:
        """Returns the control tokens of the template between message `number` (-1: the beginning) and the next content; none if
        it omits the message. `prompt`: whether the start of an answer follows."""
        template = self.chat_template
        try:
            parts = template.parts(messages, add_generation_prompt=prompt) if template.is_given else []
        except SettingsError:
            return []
        places = [n for n, part in enumerate(parts, 1) if isinstance(part, Content) and part.message == number]
        place = max(places, default=0 if number < 0 else len(parts))
        begins = {self.tokenizer.bos_token_id} if number < 0 else set()
        return [each for each in self._flat(parts[place : place + 1]) if isinstance(each, int) and each not in begins]


def _called(answer: Message, max_calls: int | None = None) -> Message:
    """Returns the answer with its first calls, each with the arguments of `_CALL`: the end of an answer is found after its last
    content, and a call without arguments has none."""
    arguments = _CALL["tool_calls"][0]["function"]["arguments"]
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments}}
        for call in (answer.get("tool_calls") or ())[:max_calls]
    ]
    return {**answer, "tool_calls": calls} if calls else answer


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which no tokenizer accepts, by question marks; the number of characters is unchanged."""
    return text.encode(errors="replace").decode()

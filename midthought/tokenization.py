"""Converts between text and token ids: chat prompts, own text with control tokens, foreign text without control tokens.

Holds one tokenizer. Does not depend on models, calls or trajectories.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tokenizers import Encoding, Tokenizer

from midthought.errors import ForeignTextError, SettingsError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT = " …[cut]"
"""Suffix of foreign text that was cut."""
_ROLES = ("system", "user", "assistant", "tool")
_MAX_CHARACTER_TOKENS = 4
"""A UTF-8 character has at most four bytes, so at most four tokens."""


_CHARACTERS_PER_TOKEN = 8
"""Characters of a long text that are encoded first, per requested token; most texts have 3 to 5 per token."""
_BEFORE_BREAK = re.compile(r"(?s:.*)(?:(?:[!-~]|[^\W_])(?=[ \n])|[A-Za-z](?=[\"(),:;<=>\[\]{}]))")
"""Matches up to the last character that no pre-tokenizer in use joins with the next one, in any context."""


class Renderer:
    """A fast Hugging Face tokenizer that encodes foreign text without control tokens.

    Foreign text (questions, transcripts, results, replies) is encoded by a copy of the tokenizer without added tokens,
    special or not: `</think>` in a transcript becomes plain pieces that spell it. Text is encoded unchanged: no token and
    no blank is prepended, even if the tokenizer would do so at the start of a text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise SettingsError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; use a model that has a tokenizer.json"
            )
        self.tokenizer = tokenizer
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        added = {token["id"]: token["content"] for token in state["added_tokens"]}
        unknown = tokenizer.unk_token_id
        self.control_token_ids = frozenset(added) - {unknown}
        """Ids of all added tokens except the unknown token, which represents characters that the tokenizer lacks."""
        self._added = added
        self._is_byte_level = (state["decoder"] or {}).get("type") == "ByteLevel"
        plain = {**state, "truncation": None, "padding": None, "post_processor": None}
        plain |= {part: _without_prefix(state[part]) for part in ("normalizer", "pre_tokenizer", "decoder")}
        self._control = Tokenizer.from_str(json.dumps(plain))
        self._spellings = _Spellings(self._control)
        plain |= {"added_tokens": [], "model": _without_tokens(state["model"], frozenset(added))}
        self._foreign = Tokenizer.from_str(json.dumps(plain))
        self._breaks: dict[str, bool] = {}

    # -- to token ids ------------------------------------------------------------------------------------------

    def prompt(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Returns a conversation (`role`, `content`) in the chat template, each content encoded as foreign text.

        Without a chat template: the contents joined by newlines, and one more newline if `add_generation_prompt`.
        """
        for message in messages:
            if message["role"] not in _ROLES:
                raise SettingsError(f"unknown role {message['role']!r}; use one of {', '.join(_ROLES)}")
        contents = [message["content"] for message in messages]
        roles = tuple(message["role"] for message in messages)
        token_ids: list[int] = []
        for part in self._template_parts(roles, add_generation_prompt):
            token_ids += self.foreign(contents[part]) if isinstance(part, int) else self.control(part)
        return token_ids

    def following(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Returns the chat template's tokens after an answer's end-of-sequence token: these messages, then the start of the next
        answer. Earlier messages are not encoded again, so a template that rewrites them has no effect.

        Roles that the template rejects or omits (`tool`) are replaced by `user`.
        """
        try:
            return self._after_answer(messages)
        except SettingsError:
            if all(message["role"] == "user" for message in messages):
                raise
            return self._after_answer([{**message, "role": "user"} for message in messages])

    def _after_answer(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        roles = ("user", "assistant", *(message["role"] for message in messages))
        parts = self._template_parts(roles, add_generation_prompt=True)
        head, *rest = parts[parts.index(1) + 1 :]
        token_ids = self.control(str(head))
        ends = [index for index, token_id in enumerate(token_ids) if token_id in self.eos_token_ids]
        token_ids = token_ids[ends[0] + 1 :] if ends else token_ids
        for part in rest:
            token_ids += self.foreign(messages[part - 2]["content"]) if isinstance(part, int) else self.control(part)
        return token_ids

    @functools.cached_property
    def only_appends(self) -> bool:
        """Whether the chat template keeps earlier turns unchanged, including thoughts, when a turn is added."""
        spoken = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nb\n</think>\n\nc"}]
        if not self.tokenizer.chat_template:
            return True
        from jinja2 import TemplateError

        write = functools.partial(self.tokenizer.apply_chat_template, tokenize=False)
        try:
            return str(write([*spoken, {"role": "user", "content": "d"}])).startswith(str(write(spoken)).rstrip())
        except TemplateError:
            return False

    def foreign(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Encodes foreign text. With `max_tokens`, a longer text is cut and ends with " …[cut]".

        Lone surrogates become question marks. Raises `ForeignTextError` if the result contains a control token.
        """
        encodable = _encodable(text if max_tokens is None else self.truncate(text, max_tokens))
        token_ids = self._foreign.encode(encodable, add_special_tokens=False).ids
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

    def _beginning(self, text: str, num_tokens: int) -> tuple[str, Encoding]:
        """Returns a head of the text and its encoding as foreign text: the whole text, or at least `num_tokens` + 1 tokens.

        They are also the first tokens of the whole text. The head ends at a break: a position at which the encoding of the
        whole is the encoding of what is before it, followed by the encoding of what is after it. Memory and time depend on
        `num_tokens`; only a text without breaks is encoded as a whole.
        """
        length = _CHARACTERS_PER_TOKEN * (num_tokens + 1)
        while length < len(text):
            head = _encodable(text[: self._last_break(text, length)])
            encoding = self._foreign.encode(head, add_special_tokens=False)
            if len(encoding.ids) > num_tokens:
                return head, encoding
            length *= 4
        text = _encodable(text)
        return text, self._foreign.encode(text, add_special_tokens=False)

    def _last_break(self, text: str, length: int) -> int:
        """Returns the last break among the first `length` characters; 0 if none is found."""
        while found := _BEFORE_BREAK.match(text, 0, length):
            length = found.end()
            if self._is_break(text[length - 1], text[length]):
                return length
        return 0

    def _is_break(self, before: str, after: str) -> bool:
        """Whether a text can be encoded in two parts between these two characters.

        It can if the pre-tokenizer separates them, because the model encodes each part separately. It also can if no piece of the
        vocabulary contains both: no merge (BPE) and no edge of the best path (Unigram) crosses the position. A known blank also
        ends a run of unknown characters, which become one token.
        """
        if before + after not in self._breaks:
            self._breaks[before + after] = self._separates(f"a{before}{after}a")
        return self._breaks[before + after]

    def _separates(self, text: str) -> bool:
        """Whether there is a break before the second to last character."""
        if self._foreign.normalizer is not None:
            text = self._foreign.normalizer.normalize_str(text)
        parts = [(text, (0, len(text)))]
        if self._foreign.pre_tokenizer is not None:
            parts = self._foreign.pre_tokenizer.pre_tokenize_str(text)
        across = [part for part, (start, end) in parts if start < len(text) - 2 < end]
        if not across:
            return True
        if not self._joins_by_vocabulary or len(across[0]) < 3:
            return False
        pair = across[0][-3:-1]
        return self._foreign.token_to_id(pair[1]) is not None and pair not in self._pieces

    @functools.cached_property
    def _joins_by_vocabulary(self) -> bool:
        """Whether every token is a piece of the vocabulary found within a word, not the result of looking up a whole word."""
        model = json.loads(self._foreign.to_str())["model"]
        return model["type"] == "Unigram" or (model["type"] == "BPE" and not model["ignore_merges"])

    @functools.cached_property
    def _pieces(self) -> str:
        return "\0".join(self._foreign.get_vocab())

    def control(self, text: str) -> list[int]:
        """Encodes own text: names of control tokens in it become control tokens."""
        return self._control.encode(text, add_special_tokens=False).ids

    def _num_foreign(self, text: str) -> int:
        return len(self._foreign.encode(text, add_special_tokens=False).ids)

    def _template_parts(self, roles: tuple[str, ...], add_generation_prompt: bool) -> list[str | int]:
        """Returns the chat template's own text (str) with the message's index (int) in place of each content."""
        if not self.tokenizer.chat_template:
            bos_id = self.tokenizer.bos_token_id
            has_bos = bos_id is not None and self.tokenizer("").input_ids[:1] == [bos_id]
            joined = [part for number in range(len(roles)) for part in ("\n", number)][1:]
            return [self.tokenizer.bos_token if has_bos else "", *joined, "\n" if add_generation_prompt else ""]
        mark = f"content{uuid.uuid4().hex}n"
        messages = [{"role": role, "content": f"{mark}{number}e"} for number, role in enumerate(roles)]
        from jinja2 import TemplateError

        write = self.tokenizer.apply_chat_template
        try:
            text = write(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
        except TemplateError as error:
            raise SettingsError(f"the chat template refuses the roles {roles}: {error}; use another template") from None
        head, *rest = str(text).split(mark)
        parts: list[str | int] = [head]
        for piece in rest:
            number, _, tail = piece.partition("e")
            parts += [int(number), tail]
        if missing := sorted(set(range(len(roles))).difference(part for part in parts if isinstance(part, int))):
            raise SettingsError(
                f"the chat template leaves out message {missing[0]} ({roles[missing[0]]!r}) of the roles {roles}; "
                "put its words into another message or use another template"
            )
        return parts

    # -- from token ids ----------------------------------------------------------------------------------------

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, with control tokens spelled out and no clean-up of spaces."""
        return self._control.decode(list(token_ids), skip_special_tokens=False)

    def decode_stream(self) -> DecodeStream:
        """Returns a new stream that decodes token by token."""
        return _ByteStream(self._spellings) if self._is_byte_level else _WindowStream(self._control)

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
        """The tokenizer's end-of-sequence token, and the control token with which the chat template ends an answer."""
        eos_id = self.tokenizer.eos_token_id
        ends = set() if eos_id is None else {eos_id}
        if self.tokenizer.chat_template:
            *_, tail = self._template_parts(("user", "assistant"), add_generation_prompt=False)
            ends.update(self.control_token_ids.intersection(self.control(str(tail).strip())[:1]))
        return frozenset(ends)


class DecodeStream(Protocol):
    """Decodes a stream of tokens piece by piece.

    `tokenizers.decoders.DecodeStream` decodes all tokens since the last whole character again: if a model samples stray
    bytes, this takes quadratic time, and the result differs from `decode`.
    """

    def step(self, token_id: int) -> str:
        """Returns the text that this token completes; empty while a character is incomplete."""
        ...


class _Spellings(dict[int, tuple[bytes, str | None]]):
    """Maps tokens of a byte-level tokenizer to their bytes, and to their text if the bytes are whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> tuple[bytes, str | None]:
        piece = self._tokenizer.id_to_token(token_id) or ""
        values = [_BYTES.get(character) for character in piece]
        spelling = piece.encode() if None in values else bytes(value or 0 for value in values)
        try:
            self[token_id] = (spelling, spelling.decode())
        except UnicodeDecodeError:
            self[token_id] = (spelling, None)
        return self[token_id]


class _ByteStream:
    """For byte-level tokenizers, whose tokens are known bytes. The joined pieces equal `decode` of the ids, including stray
    bytes, except for an incomplete character at the end."""

    def __init__(self, spellings: _Spellings) -> None:
        self._spellings = spellings
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_between_characters = True

    def step(self, token_id: int) -> str:
        spelling, text = self._spellings[token_id]
        if text is not None and self._is_between_characters:
            return text
        piece = self._decoder.decode(spelling)
        self._is_between_characters = not self._decoder.getstate()[0]
        return piece


class _WindowStream:
    """For other tokenizers: decodes the tokens of the last piece and the later ones, eight at most. The joined pieces equal
    `decode` of the ids if these spell valid UTF-8 without U+FFFD."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._read_ids: list[int] = []
        self._read_text = ""
        self._pending_ids: list[int] = []

    def step(self, token_id: int) -> str:
        self._pending_ids.append(token_id)
        text = self._tokenizer.decode(self._read_ids + self._pending_ids, skip_special_tokens=False)
        if text.endswith("\ufffd") and len(self._pending_ids) < _MAX_CHARACTER_TOKENS:
            return ""
        piece = text[len(self._read_text) :]
        self._read_ids, self._pending_ids = self._pending_ids, []
        self._read_text = self._tokenizer.decode(self._read_ids, skip_special_tokens=False)
        return piece


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which no tokenizer accepts, by question marks; the number of characters is unchanged."""
    return text.encode(errors="replace").decode()


def _byte_alphabet() -> dict[str, int]:
    """Returns the characters that represent bytes in byte-level tokenizers (GPT-2): printable Latin-1 itself, others from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _without_prefix(node: Any) -> Any:
    """Returns a normalizer, pre-tokenizer or decoder (tokenizer.json) that neither adds nor removes a blank before a text."""
    if not isinstance(node, dict):
        return node
    if node["type"] == "Prepend" or (node["type"] == "Strip" and "start" in node):
        return None
    node = dict(node)
    for key in ("normalizers", "pretokenizers", "decoders"):
        if key in node:
            node[key] = [part for part in map(_without_prefix, node[key]) if part is not None]
    if node["type"] == "Metaspace":
        node["prepend_scheme"] = "never"
    if node["type"] == "ByteLevel":
        node["add_prefix_space"] = False
    return node


def _without_tokens(model: dict[str, Any], token_ids: frozenset[int]) -> dict[str, Any]:
    """Returns a model (tokenizer.json) that cannot produce these tokens; the ids of the others are unchanged.

    A vocabulary may contain added tokens as ordinary pieces, which Unigram, WordLevel and merged words would find.
    They get names that occur in no text. Single characters keep their names: otherwise the character would be lost.
    """
    vocab = model["vocab"]
    pieces = enumerate(piece for piece, _ in vocab) if isinstance(vocab, list) else ((i, p) for p, i in vocab.items())
    hidden = {p: f"{uuid.uuid4().hex}{i}" for i, p in pieces if i in token_ids and len(p) > 1}
    model = dict(model)
    if isinstance(vocab, list):
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {hidden.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") is not None:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [
            [left, right] for left, right in pairs if hidden.keys().isdisjoint((left, right, left + right))
        ]
    return model

"""Words a sentence as reported speech: "I put up 218 bells" becomes "they put up 218 bells"."""

from __future__ import annotations

import re

from midthought.memory.rule_questions.english import AUXILIARIES, word_set
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token

_FIRST_PERSON = {
    "i": "they", "i'm": "they are", "i've": "they have", "i'd": "they would", "i'll": "they will", "me": "them", "my": "their",
    "mine": "theirs", "myself": "themselves", "we": "they", "we're": "they are", "we've": "they have", "we'd": "they would",
    "we'll": "they will", "us": "them", "our": "their", "ours": "theirs", "ourselves": "themselves",
}  # fmt: skip
FIRST_PERSON = frozenset(_FIRST_PERSON)
_THIRD_PERSON = word_set("they them their theirs they're they've they'd themselves")
_PARTICIPLES = word_set("been had never just already always lost gone seen done made")


def reported_speech(text: str, vocabulary: Vocabulary) -> str | None:
    """Returns a sentence as a clause after "says that", in the third person; None if a pronoun would become ambiguous."""
    tokens = text.split()
    words = [bare_token(token).lower() for token in tokens]
    if set(words) & FIRST_PERSON and set(words) & _THIRD_PERSON:
        return None
    said: list[str] = []
    for place, (token, word) in enumerate(zip(tokens, words, strict=True)):
        last = [words[place - back] for back in (1, 2) if place >= back]
        if word in ("am", "was") and last and (last[0] == "i" or (last[-1] == "i" and last[0] not in AUXILIARIES)):
            token = token.lower().replace(word, "are" if word == "am" else "were")
        elif (
            word in ("i'd", "we'd")
            and place + 1 < len(words)
            and (words[place + 1] in _PARTICIPLES or words[place + 1].endswith("ed"))
        ):
            token = "they had"
        elif word in _FIRST_PERSON:
            token = re.sub(re.escape(word), _FIRST_PERSON[word], token, flags=re.IGNORECASE)
        elif place == 0 and vocabulary.starts_lower(token):
            token = token[0].lower() + token[1:]
        said.append(token)
    return " ".join(said)

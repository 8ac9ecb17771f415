"""Whether somebody speaks in a text: words such as `I`, `you`, `we`, `so` and `thanks`, in English, German, Russian and Chinese.
Articles, descriptions and lists have almost none."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

_MIN_WORDS = 50
_MAX_LETTERS = 200_000
_MIN_FUNCTION_SHARE = 0.15
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


class _Language(NamedTuple):
    function: frozenset[str]
    """Frequent words of every text in the language."""
    spoken: frozenset[str]
    """Words of the first and second person, and words with which people start, agree and thank."""
    least: float
    """Share of spoken words, of all words, that nearly every talk has."""


def _language(function: str, spoken: str, least: float) -> _Language:
    return _Language(frozenset(function.split()), frozenset(spoken.split()), least)


_LANGUAGES = (
    _language(
        "the of and to in is a for that on with as by at from are this it was an",
        "i you we me my your our us i'm i've i'll i'd you're you've you'll we're we've we'll it's that's don't let's so yeah "
        "yes okay ok um uh oh well like really going gonna know think want what's here right just hello hi thank thanks "
        "welcome",
        0.018,
    ),
    _language(
        "der die und in den von zu das mit des auf für im dem nicht ein eine auch an",
        "ich du wir mich mir uns mein meine dein unsere ja also hallo danke jetzt hier",
        0.012,
    ),
    _language(
        "и в на не что с по как к из это для от за но о у же а то",
        "я ты мы вы мне меня нас нам вас вам мой моя ваш наш вот так да ну здравствуйте спасибо",
        0.012,
    ),
)

SPOKEN = frozenset().union(*(language.spoken for language in _LANGUAGES))
"""The spoken words of all these languages."""

_OTHERS = (
    "de la que el en y los del las un una por con para al se es lo no su",
    "de a que o e do da em um para com não uma os no se na por as dos",
    "di e il la che in un per è una del della con non da i le sono al nel",
    "de la le et les des en un une du dans est pour par au que sur qui ne pas",
    "de het een en van in is dat op zijn met voor niet aan er om ook dan",
    "og i at det er en til på for med af de ikke den der et att är och av",
)
"""Frequent words of languages of which nothing is known: verbs need no pronouns, or too few texts were looked at."""


_HAN = re.compile(r"[\u4e00-\u9fff]")
_KANA = re.compile(r"[\u3040-\u30ff]")
_SPOKEN_HAN = re.compile(r"[我你您咱吗嗎呢吧啊嗯哈]|谢谢|謝謝")
_MIN_HAN = 200
_LEAST_HAN = 0.006
"""Of the letters of Chinese talks, 0.012 or more are such words; articles have less than half of it."""


def lacks_spoken_words(text: str, factor: float = 1) -> bool:
    """Whether a text in one of the languages has fewer of these words than nearly every talk (by this factor); of one that is too
    short, or in another language, nothing is known."""
    text = text[:_MAX_LETTERS]
    if (num_han := len(_HAN.findall(text))) >= _MIN_HAN and 2 * num_han > len(text) > 20 * len(_KANA.findall(text)):
        return len(_SPOKEN_HAN.findall(text)) < factor * _LEAST_HAN * num_han
    words = [word.replace("’", "'") for word in _WORD.findall(text.casefold())]
    if len(words) < _MIN_WORDS:
        return False
    language = max(_LANGUAGES, key=lambda each: sum(word in each.function for word in words))
    counts = Counter(words)
    num_function = sum(word in language.function for word in words)
    if num_function < max(
        _MIN_FUNCTION_SHARE * len(words), *(sum(counts[word] for word in each.split()) for each in _OTHERS)
    ):
        return False
    return sum(word in language.spoken for word in words) < factor * language.least * len(words)

"""Runs of content words that a question and its passages have in common: a question must not repeat its passages."""

from __future__ import annotations

import re
from collections.abc import Iterable

from midthought.memory.chunks import Chunk

NUM_SHARED_WORDS = 3
"""A question and its passages have no run of this many content words in common."""
_WORDS = """\
a able about above absolutely across actually after again against ago all almost along already also although
always am among an and another any anybody anyone anything are aren't around as at away back bad basically be
because been before behind being below beside between beyond big bit both but by came can can't cannot case come
comes coming could couldn't day days definitely did didn't different do does doesn't don't down during each
either else end even ever every everybody everyone everything exactly except fact feel feels felt few first for
from get gets getting go goes going gone gonna good got gotta great guy guys had hadn't happen happened happens
has hasn't have haven't he he'd he'll he's hello her here hers herself hey hi high him himself his hmm how i i'd
i'll i'm i've idea if in inside into is isn't it it'd it'll it's its itself just kind kinda knew know knows last
least less let let's like likes literally little long look looking looks lot lots low made make makes making
many may maybe me mean means meant might mine more most much must my myself near need needs neither never new
next no nobody nope nor not nothing now obviously of off often oh ok okay old on once one ones only onto or
other others our ours ourselves out over own part past people per perhaps person please point pretty probably
put question quite really right said same saw say saying says see seen sees sense shall she she'd she'll she's
should shouldn't since so some somebody someone something sometimes sort sorta start started still stuff such
super sure take takes taking talk talking tell than thank thanks that that'll that's the their theirs them
themselves then there there's these they they'd they'll they're they've thing things think thinks this this's
those though thought through throughout time times to today told too took totally toward towards try trying uh
um under unless until up upon us use used uses using very via wanna want wants was wasn't way ways we we'd we'll
we're we've well went were weren't what whatever when where whether which while who whole whom whose why will
with within without won't work working works would wouldn't wow y'all yeah year years yep yes yet you you'd
you'll you're you've your yours yourself"""
_FUNCTION_WORDS = frozenset(_WORDS.split())
"""Frequent words of English, which are no content. Of other languages, all words count."""


class ContentRuns:
    """The runs of `NUM_SHARED_WORDS` content words of passages."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._runs = set(_runs(" ".join(chunk.transcript for chunk in chunks)))

    def shared(self, text: str) -> list[str]:
        """Returns the runs of the text that the passages have, too, in order."""
        return [" ".join(run) for run in _runs(text) if run in self._runs]


def _runs(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+(?:['’.-]\w+)*", text.lower().replace("’", "'"))
    words = [word.removesuffix("'s") for word in words]
    content = [word for word in words if word not in _FUNCTION_WORDS]
    return list(zip(*(content[start:] for start in range(NUM_SHARED_WORDS)), strict=False))

"""One function per kind of question: yields every question of the kind that the memory allows, in order. English.

A question that could have two answers, that contains words of its answer, or that has little content is left out.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from midthought.memory.chunks import UNKNOWN_TIME
from midthought.memory.rule_questions import wordings
from midthought.memory.rule_questions.english import (
    ABBREVIATIONS,
    ADDRESSED,
    AUXILIARIES,
    CALENDAR,
    CLAUSE_STARTS,
    OPENERS,
    PREPOSITIONS,
    PRONOUNS,
)
from midthought.memory.rule_questions.listener import Draft, Listener, draft_of, draft_of_gap, reveals
from midthought.memory.rule_questions.replies import exchanges, next_drafts
from midthought.memory.rule_questions.reported_speech import FIRST_PERSON
from midthought.memory.rule_questions.speech import Sentence, SpokenTurn, plain_words
from midthought.memory.rule_questions.statements import Statement
from midthought.memory.rule_questions.vocabulary import Vocabulary, bare_token

MIN_MENTIONS = 2
MAX_INSIDE_SHARE = 0.25
_NO_PART = (
    ABBREVIATIONS
    | ADDRESSED
    | AUXILIARIES
    | CLAUSE_STARTS
    | FIRST_PERSON
    | OPENERS
    | PREPOSITIONS
    | PRONOUNS
    | {"a", "an", "the"}
)
"""These start the words of somebody else, or of a title: "New" and "Super" can be the first word of a name."""
_TITLES = ("Dr.", "Mr.", "Mrs.", "Ms.", "Prof.", "St.")
MAX_WORDS_SINCE_TIME = 30
"""About twelve seconds of speech. A statement that is said longer after its timestamp is said at another time."""


def speaker_drafts(asked: Listener) -> Iterator[Draft]:
    """Who says that …?"""
    for each in asked.statements:
        if any(place.speaker != each.speaker for place in asked.index.similar(each.text, each.sentence)):
            continue
        form, frames = ("within", wordings.SPEAKER_WITHIN) if asked.has_premises else ("statement", wordings.SPEAKER)
        question = asked.choose(frames, said=each.reported, episode=each.episode)
        yield replace(draft_of("speaker", form, question, each.speaker, (), each), named=each.episode)


def episode_drafts(asked: Listener) -> Iterator[Draft]:
    """In which episode does … say that …?"""
    for each in asked.statements:
        if any(place.stem != each.stem for place in asked.index.similar(each.text, each.sentence)):
            continue
        who = each.speaker if asked.has_premises or asked.drawn("who", each.text) < 0.5 else "somebody"
        question = asked.choose(wordings.EPISODE, who=who, said=each.reported)
        if not reveals(each.reported, each.episode):
            yield draft_of("episode", "statement", question, each.episode, (), each)


def when_drafts(asked: Listener) -> Iterator[Draft]:
    """At what time does … say that …? In which year …?"""
    for gap in asked.gaps:
        if gap.kind == "when":
            yield draft_of_gap(asked, gap)
    for each in asked.statements:
        time = each.sentence.time
        is_exact = each.sentence.words_since_time <= MAX_WORDS_SINCE_TIME
        is_displayed = time == each.sentence.displayed_time != UNKNOWN_TIME
        if not (is_exact and is_displayed) or any(
            place.stem == each.stem for place in asked.index.similar(each.text, each.sentence)
        ):
            continue
        question = asked.choose(wordings.WHEN, episode=each.episode, who=each.speaker, said=each.reported)
        short = time.removeprefix("00:")
        yield draft_of("when", "time", question, time, (short, short.lstrip("0")), each)


def number_drafts(asked: Listener) -> Iterator[Draft]:
    """How many … does … say …?"""
    yield from _stated(asked, "number")


def name_drafts(asked: Listener) -> Iterator[Draft]:
    """What does … say …, if the answer is a name."""
    yield from _stated(asked, "name")


def _stated(asked: Listener, kind: str) -> Iterator[Draft]:
    yield from (draft_of_gap(asked, gap) for gap in asked.gaps if gap.kind == kind)
    for gap in asked.blanks:
        if gap.kind == kind:
            text = asked.choose(wordings.BLANK, who=gap.statement.speaker, said=gap.clause, wh=gap.wh)
            yield draft_of(kind, "blank", text, gap.answer, gap.aliases, gap.statement)


def compare_drafts(asked: Listener) -> Iterator[Draft]:
    """Who mentions … first, or more often: … or …?"""
    for stem, names in mentions_of(asked).items():
        for topic, (turn, _) in ((name, places[0]) for name, places in names.items()):
            places = [place for place in asked.index.mentions(topic) if place.stem == stem]
            counts = Counter(place.speaker for place in places)
            first = places[0]
            others = sorted(set(counts) - {first.speaker})
            is_clear = set(counts) <= {*asked.speakers[stem]} and not asked.index.has_derived(topic, stem)
            if not others or not is_clear or reveals(" ".join([*counts, turn.episode]), topic):
                continue
            other = asked.pick(others, stem, topic)
            second = next(place for place in places if place.speaker == other)
            if set(first.sentence.chunk_ids) & set(second.sentence.chunk_ids):
                continue
            pair = [first.speaker, other]
            often, seldom = sorted(pair, key=lambda name: -counts[name])
            frames: Sequence[str] = wordings.FIRST_TO_SAY
            form, answer, proof = "first", first.speaker, [first, second]
            if counts[often] >= 3 * counts[seldom] and asked.drawn("more", stem, topic) < 0.5:
                frames, form, answer = wordings.MORE_OFTEN, "more", often
                proof = [place for place in places if place.speaker in pair]
            a, b = sorted(pair, key=lambda name: asked.drawn(stem, topic, name, form))
            text = asked.choose(frames, topic=topic, episode=turn.episode, a=a, b=b)
            information = sum(asked.vocabulary.idf(word) for word in plain_words(topic))
            loser = next(name for name in pair if name != answer)
            chunk_ids = tuple(dict.fromkeys(chunk_id for place in proof for chunk_id in place.sentence.chunk_ids))
            yield Draft("compare", form, text, answer, (), chunk_ids, stem, topic, information, labels={"loser": loser})


def two_drafts(asked: Listener) -> Iterator[Draft]:
    """Questions that need two chunks: what else does the speaker of … say; which episode has both … and …"""
    by_speaker: dict[tuple[str, str], list[Statement]] = defaultdict(list)
    for each in asked.statements:
        if all(place.speaker == each.speaker for place in asked.index.similar(each.text, each.sentence)):
            by_speaker[each.stem, each.speaker].append(each)
    for gap in asked.gaps:
        own = gap.statement
        others = [
            each
            for each in by_speaker[own.stem, own.speaker]
            if not set(each.sentence.chunk_ids) & set(own.sentence.chunk_ids) and not reveals(each.reported, gap.answer)
        ]
        if others:
            each = min(others, key=lambda each: (not each.is_specific, asked.drawn(gap.clause, each.text)))
            inner = gap.question("the same person", asked.pick(wordings.FRAMES[:2], gap.clause))
            text = asked.choose(wordings.BRIDGE, said=each.reported, gap=inner)
            evidence = (*each.sentence.chunk_ids, *own.sentence.chunk_ids)
            yield replace(draft_of_gap(asked, gap), kind="two", form="bridge", question=text, chunk_ids=evidence)
    for question, first, second, reply in exchanges(asked):
        if reveals(question.text, second.speaker):
            continue
        text = asked.choose(wordings.REPLIER, first=first.speaker, asked=question.text)
        yield Draft(
            "two",
            "replier",
            text,
            second.speaker,
            (),
            (*question.chunk_ids, *reply.chunk_ids),
            first.stem,
            question.text,
            asked.vocabulary.information(question.text),
        )
    yield from _topic_pairs(asked)


def _topic_pairs(asked: Listener) -> Iterator[Draft]:
    mentions = mentions_of(asked)
    names = sorted({name for topics in mentions.values() for name in topics})
    stems_of = {name: {place.stem for place in asked.index.mentions(name)} for name in names}
    for stem, topics in mentions.items():
        several = [topic for topic in topics if len(stems_of[topic]) > 1 and len(topics[topic]) >= MIN_MENTIONS]
        shared = sorted(several, key=lambda topic: asked.drawn("pair", topic))
        for a, b in zip(shared[::2], shared[1::2], strict=False):
            places = (topics[a][0], topics[b][0])
            title = places[0][0].episode
            evidence = (*places[0][1].chunk_ids, *places[1][1].chunk_ids)
            if stems_of[a] & stems_of[b] == {stem} and not reveals(f"{a} {b}", title) and len(set(evidence)) > 1:
                text = asked.choose(wordings.BOTH_TOPICS, a=a, b=b)
                yield Draft("two", "topics", text, title, (), tuple(dict.fromkeys(evidence)), stem, f"{a} {b}")


def mentions_of(asked: Listener) -> dict[str, dict[str, list[tuple[SpokenTurn, Sentence]]]]:
    """Returns where each name is mentioned, by episode and name, in order. Names of speakers are left out."""
    found: dict[str, dict[str, list[tuple[SpokenTurn, Sentence]]]] = defaultdict(lambda: defaultdict(list))
    people = {word for names in asked.speakers.values() for name in names for word in plain_words(name)}
    for turn in asked.turns:
        if turn.stem not in asked.english or turn.speaker not in asked.speakers[turn.stem]:
            continue
        for sentence in turn.sentences:
            for name in names_in(sentence.text, asked.vocabulary):
                if not people & set(plain_words(name)) and not reveals(name, turn.episode):
                    found[turn.stem][name].append((turn, sentence))
    cut = _parts_of_names(found)
    return {stem: {name: places for name, places in names.items() if name not in cut} for stem, names in found.items()}


def _parts_of_names(mentions: Mapping[str, Mapping[str, Sequence[object]]]) -> set[str]:
    """Returns the names that are often a part of a longer one: "Micro" and "Super Micro" are two companies."""
    counts: Counter[str] = Counter()
    for names in mentions.values():
        counts.update({name: len(places) for name, places in names.items()})
    inside: Counter[str] = Counter()
    for name, number in counts.items():
        words = name.split()
        for start, end in itertools.combinations(range(len(words) + 1), 2):
            inside[" ".join(words[start:end])] += number if end - start < len(words) else 0
    return {name for name, number in counts.items() if inside[name] >= MAX_INSIDE_SHARE * number}


def names_in(text: str, vocabulary: Vocabulary) -> list[str]:
    """Returns the names within a sentence, without its first word: neighbouring words with a capital letter of which one is
    written so in all sentences."""
    names: list[list[str]] = []
    is_open = False
    for token in text.replace("’", "'").split()[1:]:
        word = bare_token(token)
        is_part = token[:1].isupper() and word.lower() not in _NO_PART
        if is_part and is_open:
            names[-1].append(word)
        elif is_part:
            names.append([word])
        is_open = is_part and (token[-1].isalnum() or token in _TITLES)
    joined = [" ".join(name).removesuffix("'s") for name in names if any(map(vocabulary.is_name, name))]
    return list(dict.fromkeys(name for name in joined if len(name) > 2 and not set(plain_words(name)) & CALENDAR))


KINDS: dict[str, Callable[[Listener], Iterator[Draft]]] = {
    "speaker": speaker_drafts,
    "episode": episode_drafts,
    "next": next_drafts,
    "number": number_drafts,
    "name": name_drafts,
    "compare": compare_drafts,
    "when": when_drafts,
    "two": two_drafts,
}
"""The kinds of question that have an answer."""

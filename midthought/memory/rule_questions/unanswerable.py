"""Questions whose premise is false, so that the memory has no answer: in the words of the other kinds, about another speaker,
name or episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from midthought.data.abstention import NO_ANSWER, OTHER_WORDINGS, UNANSWERABLE
from midthought.memory.rule_questions import wordings
from midthought.memory.rule_questions.forms import mentions_of, names_in
from midthought.memory.rule_questions.gaps import Gap
from midthought.memory.rule_questions.listener import Draft, Listener, bare_words, draft_of, draft_of_gap
from midthought.memory.rule_questions.replies import continued_statements, reply_drafts
from midthought.memory.rule_questions.speech import plain_words
from midthought.memory.rule_questions.statements import Statement

MAX_SIMILAR = 0.35
"""The other speaker says nothing with more of the statement's information than this."""
NUM_NEAR_EPISODES = 5
"""Of so many episodes with the most of a statement's words, one is named as that of the statement."""


def unanswerable_drafts(asked: Listener) -> Iterator[Draft]:
    """Yields questions that the memory does not answer. `form` names kind and form of the questions that it looks like;
    `chunk_ids` has what is nearest to an answer."""
    for gap in asked.gaps:
        if (other := _other_speaker(asked, gap.statement, gap)) is not None:
            question = gap.question(other, asked.pick(wordings.FRAMES, other, gap.clause))
            yield _without_answer(draft_of_gap(asked, gap), question, other)
    for gap in asked.blanks:
        if (other := _other_speaker(asked, gap.statement, gap)) is not None:
            question = asked.choose(wordings.BLANK, who=other, said=gap.clause, wh=gap.wh)
            yield _without_answer(draft_of(gap.kind, "blank", "", "", (), gap.statement), question, other)
    titles = {turn.stem: turn.episode for turn in asked.memory}
    for each in asked.statements:
        yield from _within_another_episode(asked, each, titles)
        if (other := _other_speaker(asked, each)) is not None:
            question = asked.choose(wordings.WHEN, episode=each.episode, who=other, said=each.reported)
            yield _without_answer(draft_of("when", "time", "", "", (), each), question, other)
            question = asked.choose(wordings.EPISODE, who=other, said=each.reported)
            yield _without_answer(draft_of("episode", "statement", "", "", (), each), question, other)
    for each, _, frames in continued_statements(asked):
        if (other := _other_speaker(asked, each)) is not None:
            draft = draft_of("next", "continuation", "", "", (), each)
            yield _without_answer(draft, asked.choose(frames, who=other, said=each.reported), other)
    yield from _other_names(asked)
    yield from _other_repliers(asked)
    yield from _topics_of_others(asked)
    yield from _other_bridges(asked)


def _without_answer(draft: Draft, question: str, named: str) -> Draft:
    form = f"{draft.kind}/{draft.form}"
    return replace(
        draft,
        kind=UNANSWERABLE,
        form=form,
        question=question,
        answer=NO_ANSWER,
        aliases=OTHER_WORDINGS,
        subject=question,
        named=named,
    )


def _within_another_episode(asked: Listener, each: Statement, titles: Mapping[str, str]) -> Iterator[Draft]:
    """In "…", who says that …? Of an episode that is about similar things, and in which nobody says this."""
    similar = {place.stem for place in asked.index.similar(each.text, each.sentence, MAX_SIMILAR)}
    others = [stem for stem in titles if stem != each.stem and stem not in similar]
    shared = asked.index.shared(each.text)
    if others:
        near = sorted(others, key=lambda stem: -shared.get(stem, 0.0))[:NUM_NEAR_EPISODES]
        title = titles[asked.pick(near, each.text)]
        question = asked.choose(wordings.SPEAKER_WITHIN, said=each.reported, episode=title)
        yield _without_answer(draft_of("speaker", "within", "", "", (), each), question, title)


def _other_bridges(asked: Listener) -> Iterator[Draft]:
    """Somebody says that …; what does the same person say …, which another speaker of the episode says."""
    for gap in asked.gaps:
        other = _other_speaker(asked, gap.statement, gap)
        own = [each for each in asked.statements if each.stem == gap.statement.stem and each.speaker == other]
        if own:
            inner = gap.question("the same person", asked.pick(wordings.FRAMES[:2], gap.clause))
            first = min(own, key=lambda each: (not each.is_specific, asked.drawn(gap.clause, each.text)))
            question = asked.choose(wordings.BRIDGE, said=first.reported, gap=inner)
            draft = replace(draft_of_gap(asked, gap), kind="two", form="bridge")
            yield _without_answer(draft, question, draft.named)


def _other_speaker(asked: Listener, each: Statement, gap: Gap | None = None) -> str | None:
    """Returns another speaker of the episode who says nothing of this kind, nor the number or year that the gap asks for; None if
    there is none."""
    similar = {place.speaker for place in asked.index.similar(each.text, each.sentence, MAX_SIMILAR)}
    if gap is not None and gap.kind != "name":  # "Four months!": a host repeats what a guest says
        phrases = [phrase for phrase in (gap.answer, *gap.aliases) if " " in phrase or "$" in phrase]
        repeated = [place for phrase in phrases for place in asked.index.mentions(phrase)]
        similar |= {place.speaker for place in repeated if place.stem == each.stem}
    names = bare_words(each.text)
    others = [
        name
        for name in asked.speakers[each.stem]
        if name != each.speaker and name not in similar and not names & bare_words(name)
    ]
    return asked.pick(others, each.text) if others else None


def _other_names(asked: Listener) -> Iterator[Draft]:
    """In "…", who says that …, with another name of the same episode in the statement."""
    mentions = mentions_of(asked)
    for each in asked.statements:
        places = mentions.get(each.stem, {})
        names = [name for name in names_in(each.reported, asked.vocabulary) if name in places]
        others = [name for name in places if name not in each.text]
        if not names or not others:
            continue
        name = names[0]
        before = _words_before(name, [each.text])
        related = {place.sentence.text for place in asked.index.mentions(name) if place.stem == each.stem}
        alike = [
            other
            for other in others
            if _shape(other) == _shape(name)
            and not (name.lower() in other.lower() or other.lower() in name.lower())  # "Node", "NodeCore"
            and not any(sentence.text in related for _, sentence in places[other])  # "Microsoft in Argentina"
            and before & _words_before(other, [sentence.text for _, sentence in places[other]])
        ]
        if not alike:
            continue
        other = asked.pick(alike, each.text)
        rest = each.reported.replace(name, " ")
        similar = asked.index.similar(rest, each.sentence, MAX_SIMILAR)
        if any(set(plain_words(other)) <= set(plain_words(place.sentence.text)) for place in similar):
            continue
        question = asked.choose(wordings.SPEAKER_WITHIN, said=each.reported.replace(name, other), episode=each.episode)
        yield _without_answer(draft_of("speaker", "within", "", "", (), each), question, each.episode)


def _words_before(name: str, texts: Sequence[str]) -> set[str]:
    """Returns the words before a name: a name of a place follows other words than one of a program."""
    parts = [text.replace("’", "'").split(name)[0].split() for text in texts if name in text]
    return {part[-1].lower() for part in parts if part}


def _shape(name: str) -> tuple[int, bool]:
    """Number of words, and whether it is an acronym."""
    return len(name.split()), name.isupper()


def _other_repliers(asked: Listener) -> Iterator[Draft]:
    """What did … answer when … asked …, of a speaker who did not answer it."""
    for draft in reply_drafts(asked):
        first, second = draft.labels["first"], draft.named
        others = [name for name in asked.speakers[draft.stem] if name not in (first, second)]
        if others:
            other = asked.pick(others, draft.subject)
            question = asked.choose(wordings.NEXT, first=first, second=other, asked=draft.subject)
            yield _without_answer(draft, question, other)


def _topics_of_others(asked: Listener) -> Iterator[Draft]:
    """Which episode mentions both …; who mentions … first: of names that do not occur in one episode."""
    mentions = mentions_of(asked)
    stems = sorted(stem for stem in mentions if mentions[stem])
    for stem in stems:
        for other_stem in (each for each in stems if each != stem):
            a, b = (
                asked.pick([*mentions[stem]], stem, other_stem),
                asked.pick([*mentions[other_stem]], stem, other_stem),
            )
            holders = [{place.stem for place in asked.index.mentions(name)} for name in (a, b)]
            turn, sentence = mentions[stem][a][0]
            if holders[0] & holders[1] or a == b:
                continue
            nearest = Draft("two", "topics", "", "", (), sentence.chunk_ids, stem, "")
            yield _without_answer(nearest, asked.choose(wordings.BOTH_TOPICS, a=a, b=b), "")
            if len(asked.speakers[stem]) > 1 and stem not in holders[1]:
                pair = sorted(asked.speakers[stem], key=lambda name: asked.drawn(stem, b, name))[:2]
                question = asked.choose(wordings.FIRST_TO_SAY, topic=b, episode=turn.episode, a=pair[0], b=pair[1])
                yield _without_answer(replace(nearest, kind="compare", form="first"), question, "")

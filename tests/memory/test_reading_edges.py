"""Lines at the edges of speech: links above it, a publisher's lines below it, tags of a corpus and arrows within it."""

import pytest
from read_texts import said

TALK = (
    "The ferry was late again, so I walked to the mill and waited there with the others until the fog was gone. "
    "We spoke about the new bridge, and nobody believed that it would be ready before the winter. "
)
MORE = "In the end I rowed across myself, and my sister laughed about the wet shoes for the rest of the week."


def test_an_arrow_within_a_sentence_is_another_speaker_if_most_arrows_follow_sentences(read):
    text = f"{TALK}>> Yes. >> I think everybody >> the best rowers stay. >> Right. >> {MORE}"
    assert said(read(text)) == [
        ("Unknown Speaker", TALK.strip()), ("Unknown Speaker", "Yes."), ("Unknown Speaker", "I think everybody"),
        ("Unknown Speaker", "the best rowers stay."), ("Unknown Speaker", "Right."), ("Unknown Speaker", MORE),
    ]  # fmt: skip


def test_arrows_of_menus_stay_words(read):
    text = f"Press File >> Open and then Tools >> Fonts, as my sister did. {TALK}{MORE}"
    assert [words for _, words in said(read(text))] == [text]


def test_a_title_and_an_address_above_prose_are_no_speech(read):
    transcript = read(f"May 26 - Ann Lee on the Ferry\n\nhttps://ferry.org/watch?v=1234\n\n{TALK}\n\n{MORE}\n")
    assert said(transcript) == [("Unknown Speaker", f"{TALK}{MORE}")]
    assert [value for _, value in transcript.header] == [
        "May 26 - Ann Lee on the Ferry",
        "https://ferry.org/watch?v=1234",
    ]
    assert not transcript.is_doubtful


def test_a_publishers_lines_below_prose_are_no_speech(read):
    page = f"<h1>The Ferry</h1><p>{TALK * 5}</p><p>{MORE}</p>"
    foot = "<div><div>© 2020 Ferry House | Contact us</div></div><p>We use cookies on this site. More info.</p><b>Got it!</b>"
    transcript = read(f"<!doctype html><html><body>{page}{foot}</body></html>", "a.html")
    assert said(transcript) == [("Unknown Speaker", f"{TALK * 5}{MORE}")]
    lines = {skip.text for skip in transcript.skipped}
    assert {"© 2020 Ferry House | Contact us", "We use cookies on this site. More info.", "Got it!"} <= lines


def test_speech_after_a_sign_of_rights_stays(read):
    text = f"{TALK}\n\nAll rights reserved, it said on the sign.\n\n{MORE}\n\n{TALK}\n\n{MORE}"
    assert "All rights reserved, it said" in said(read(text))[0][1]


@pytest.mark.parametrize(
    ("line", "is_speech"),
    [
        ("Copyright 1990 was the year when I wrote it down.", True),
        ("Copyright (c) 1990 by the ferry house", False),
        ("Copyright © 1990 Ann Lee. All rights reserved.", False),
    ],
)
def test_a_year_of_copyright_is_no_speech_unless_a_sentence_goes_on(read, line, is_speech):
    text = "".join(words for _, words in said(read(f"{TALK * 5}\n\n{MORE}\n\n{line}\n")))
    assert (line in text) == is_speech


def test_tags_of_a_corpus_between_turns_are_no_speech(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    text = "".join(f"<TXT=mill{n}>\n\nE: And the {a}?\nL: I saw the {a}, as you did.\n\n" for n, a in enumerate(things))
    transcript = read(text)
    assert transcript.speakers == ("E", "L") and len(transcript.turns) == 10
    assert not any("TXT" in words for _, words in said(transcript))
    assert {skip.text for skip in transcript.skipped} >= {"<TXT=mill2>"}


def test_menus_at_the_edges_of_a_page_are_no_speech(read):
    menu = "<ul><li>Fact Check</li><li>Human Rights</li></ul>"
    page = f"<p>← Back to the list</p><p>The Ferry · Ann Lee · 2026-04-03</p><p>{TALK * 5}</p><p>{MORE}</p>"
    transcript = read(
        f"<!doctype html><title>The Ferry</title><body>{menu}<h2>Interview</h2>{page}{menu}</body>", "a.html"
    )
    assert said(transcript) == [("Unknown Speaker", f"{TALK * 5}{MORE}")]
    assert {skip.text for skip in transcript.skipped} >= {"Fact Check", "Human Rights", "← Back to the list"}


def test_fences_of_code_around_a_transcript_are_no_speech(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    turns = "".join(f"SPEAKER_0{n % 2}: And the {thing} was late, as usual.\n\n" for n, thing in enumerate(things))
    transcript = read(f"```text\n{turns}```\n")
    assert len(transcript.turns) == 5 and "`" not in "".join(words for _, words in said(transcript))


@pytest.mark.parametrize(
    ("first", "later"),
    [("Interviewer (me)", "Interviewer"), ("Ann Lee, Head of Ferries", "Ann Lee"), ("Ruth", "Ruth (laughing)")],
)
def test_a_label_with_a_description_is_the_one_without_it(read, first, later):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    text = "".join(
        f"{first if n == 0 else later}: And what about the {thing}?\n\nBob: The {thing} was late, as usual.\n\n"
        for n, thing in enumerate(things)
    )
    name = min(first, later, key=len)
    transcript = read(text)
    assert transcript.speakers == (name, "Bob") and len(transcript.turns) == 10
    assert ("speaker", max(first, later, key=len)) in transcript.header and not transcript.is_doubtful


def test_labels_with_two_names_in_brackets_stay_two(read):
    names = ["Interviewer (Ann)", "Bob", "Interviewer (Zoë)", "Bob", "Interviewer", "Bob"] * 2
    text = "".join(f"{name}: I saw boat number {n} on the river.\n\n" for n, name in enumerate(names))
    assert {"Interviewer (Ann)", "Interviewer (Zoë)"} <= set(read(text).speakers)


def test_numbers_of_questions_are_no_speakers(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    text = "".join(f"Q{n}: And the {a}, was it late?\nA: The {a} was late.\n" for n, a in enumerate(things, 1))
    transcript = read(text)
    assert transcript.speakers == ("Q", "A") and len(transcript.turns) == 10 and not transcript.is_doubtful


def test_notes_that_report_what_people_said_are_doubted(read):
    lines = [
        "She said that the ferry was late on most of the days in the winter.",
        "He mentioned the price of the tickets.",
    ]
    lines += [
        "She described the path to the mill and the gate of the garden.",
        "He asked for a list of the boats in the harbor.",
    ]
    names = ["Ann Lee", "Bob Ray", "Zoë Fox", "Tim Oak"]
    text = "".join(f"{name}: {line}\n\n" for _ in range(4) for name, line in zip(names, lines, strict=True))
    transcript = read(f"Ferry users\n\n{text}".replace("\n\nAnn Lee: She said", "\n\nAnn Lee: In short, she said", 1))
    assert transcript.is_doubtful and "notes" in " ".join(transcript.doubts)


def test_dates_with_times_within_a_turn_are_doubted(read):
    item = "<div class='author'>{}</div>" + "<span>30/01/2025, 14:2{}:17</span><div>The boat is late.</div>" * 4
    page = "".join(item.format(name, *range(4)) for name in ["ann", "bob"])
    transcript = read(f"<!doctype html><html><body><h1>Ferry</h1>{page}</body></html>", "a.html")
    assert transcript.is_doubtful


def test_fields_that_name_who_asks_and_who_answers_are_no_turns(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    text = "".join(f"**Ana:** ¿Y el {thing}?\n\n**Rui:** Sí, yo lo vi ayer.\n\n" for thing in things)
    transcript = read(f"# El río\n\nFecha: 2025\n\nEntrevistadora: Ana Paz\n\nEntrevistado: Rui Mar\n\n{text}", "a.md")
    assert transcript.speakers == ("Ana", "Rui") and ("Entrevistadora", "Ana Paz") in transcript.header


def test_someone_who_asks_first_and_then_has_numbers_is_a_speaker(read):
    things = ["渡船", "磨坊", "桥", "雾", "船"]
    talk = "".join(f"Q{n}：{thing}怎么样？\nA：{thing}晚了，我等了很久。\n" for n, thing in enumerate(things, 1))
    transcript = read(f"采访者：您好，您有任何疑问吗？\n受访者：没有问题，可以开始。\n{talk}")
    assert transcript.speakers == ("采访者", "受访者", "Q", "A") and not transcript.is_doubtful


def test_lines_with_a_dash_between_labelled_ones_are_turns_of_nobody(read):
    lines = [
        "- I saw the ferry.",
        "- It was late again.",
        "spk_2: And the mill?",
        "- Nobody works there now.",
        "- I do not know.",
    ]
    lines += [
        "spk_3: I know.",
        "- Who told you?",
        "spk_2: My sister.",
        "- She is right.",
        "spk_3: Yes.",
        "- So we wait.",
        "spk_2: Yes.",
    ]
    turns = [
        (line.partition(": ")[0], line.partition(": ")[2]) if line[0] == "s" else ("Unknown Speaker", line[2:])
        for line in lines
    ]
    transcript = read("\n".join(lines) + "\n")
    assert said(transcript) == turns and not transcript.is_doubtful


def test_lists_within_turns_stay_in_them(read):
    lines = [
        "Ann: What do we need for the ferry?",
        "Bob: I wrote it down:",
        "- ropes and nails",
        "- a new lamp",
        "- two oars",
    ]
    for thing in ("mill", "bridge", "boat"):
        lines += [f"Ann: And for the {thing}?", f"Bob: I have a {thing} list.", f"- {thing} nails", f"- a {thing} lamp"]
    transcript = read("\n".join(lines) + "\n")
    assert transcript.speakers == ("Ann", "Bob") and len(transcript.turns) == 8


@pytest.mark.parametrize(
    "form",
    [
        "Segment{{index={n}, name='{name}', text='{text}', start=0:0:{n}.5, end=0:0:{n}.9}}",
        "Segment(start={n}.5, end={n}.9, text=' {text}', speaker='{name}')",
        'Utterance(speaker="{name}", start={n}.5, end={n}.9, text="{text}")',
    ],
)
def test_records_as_a_program_prints_them(read, form):
    texts = ["Well, the ferry's late, isn't it?", "Yes, start=late, as I say.", "Then we wait.", "I wait at the mill."]
    names = ["Ann Lee", "Bob Ray"]
    turns = [(names[n % 2], text) for n, text in enumerate(texts)]
    transcript = read("\n".join(form.format(n=n, name=name, text=text) for n, (name, text) in enumerate(turns, 1)))
    assert said(transcript) == turns and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns] == ["00:00:01", "00:00:02", "00:00:03", "00:00:04"]


def test_arrows_and_labels_of_an_audience_are_turns(read):
    lines = [">> All right, hi, everyone.", "AUDIENCE MEMBER: Morning.", ">> So we talk about ferries. [laughter]"]
    lines += [
        "So before we start, who of you has a boat?",
        "AUDIENCE MEMBER: My uncle had one.",
        ">> Okay, cool.",
        ">> I had two.",
    ]
    lines += ["AUDIENCE MEMBER: Both?", ">> Both, yes.", ">> And who rows?", ">> Nobody rows in the fog.", ">> I do."]
    transcript = read("Ferries\nDay & Time: Friday\n\n" + "\n".join(f"   {line}" for line in lines))
    assert transcript.speakers == ("AUDIENCE MEMBER",) and len(transcript.turns) == 11
    assert said(transcript)[2] == (
        "Unknown Speaker",
        "So we talk about ferries. [laughter] So before we start, who of you has a boat?",
    )
    assert not transcript.is_doubtful


def test_a_first_field_that_starts_with_a_label_is_doubted(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    talk = "".join(f"Herald: I saw the {thing}.\n\nSpeaker 2: So did I.\n\n" for thing in things)
    transcript = read(
        f"*music*\n\nHerald stk: At the end of the day\nwe show you the river and\nits boats. Enjoy it.\n\n{talk}"
    )
    assert transcript.is_doubtful and "has the name of a speaker: 'Herald stk'" in transcript.doubts[0]


def test_the_sections_of_a_page_before_its_interview_are_no_speech(read):
    things = ["río", "mar", "pan", "sol", "pez", "tren"]
    rows = "".join(f"**Ana Paz:** ¿Y qué pasó con el {a}?\n\n**Rui Mar:** Yo vi el {a} ayer.\n\n" for a in things)
    method = " ".join(f"Se pregunta por el {a} y se anota lo que se dice de él en la casa de al lado." for a in things)
    transcript = read(f"# Método\n\n{method}\n\n## **Entrevista 1**\n\n{rows}", "a.md")
    assert transcript.speakers == ("Ana Paz", "Rui Mar") and len(transcript.turns) == 12


@pytest.mark.parametrize(("line", "is_article"), [("渡船在雾中停了三天", True), ("我说渡船在雾中停了三天吧", False)])
def test_chinese_prose_in_which_nobody_speaks_may_be_an_article(read, line, is_article):
    lines = [f"{line}，磨坊第{n}次没有面粉，桥上的木板也少了{n}块。" for n in "一二三四五六七八九十"]
    assert read("\n\n".join(lines)).is_doubtful is is_article


def test_a_question_of_the_audience_is_a_turn_among_labels_in_capitals(read):
    things = ["ferry", "mill", "bridge", "fog", "boat", "pier", "lamp", "rope", "oar", "sail", "net"]
    talk = "".join(
        f"LEE: I saw the {thing} this morning.\n\nRAY: And I did not see the {thing}.\n\n" for thing in things
    )
    transcript = read(f"{talk}QUESTION: Who of you rows the boat in the fog?\n\nLEE: I do.\n")
    assert transcript.speakers == ("LEE", "RAY", "QUESTION") and not transcript.is_doubtful


@pytest.mark.parametrize(
    "line",
    [
        "Transkribiert von Ann Lee",
        "Transcrito por: Ana Paz",
        "Untertitel erstellt von boote.de",
        "Sottotitoli a cura di Ada Po",
    ],
)
def test_a_line_of_who_wrote_it_down_is_no_speech(read, line):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    talk = "".join(f"Ann: I saw the {thing}.\n\nBob: So did I, at the {thing}.\n\n" for thing in things)
    transcript = read(f"{talk}{line}\n")
    assert not any(line in words for _, words in said(transcript)) and not transcript.is_doubtful
    assert line in {skip.text for skip in transcript.skipped}

"""Notations of interviews, parliaments, chats and programs; and files of other things, which are reported."""

import json

import pytest
from read_texts import said

LINES = [
    "So the bell rang at three, and nobody was there.", "I think that is right: the clock was fast.",
    "We had no idea, and what did you do?", "It cost five dollars, and took two days.", "That is the tide clock in the hall.",
    "Nobody went out for three weeks after that.", "Then the first boat left, and all of us waved.", "And I still think of it.",
]  # fmt: skip
NAMES = ["Ann Lee", "Bob Reece"] * 4
EXPECTED = list(zip(NAMES, LINES, strict=True))
WORDS = " ".join(LINES)
CHAPTERS = [("00:00", "Intro"), ("12:30", "Sponsor"), ("14:05", "The bell"), ("31:40", "Questions")]


@pytest.mark.parametrize(
    "line",
    [
        "{caps}. {text}\n\n", "({name}) {text}\n", "{name}> {text}\n\n", "◇ {name}> {text}\n\n", "{name}\t{text}\n",
        "{name}　{text}\n", "{n:03}\t{name}\t{text}\n", "{name} ― {text}\n\n", "{name}:: {text}\n\n", ":{name}: {text}\n\n",
        "[00:0{n} - 00:0{n}] {name} >> {text}\n", "[5/12 9:0{n} AM] {name}\n{text}\n\n", "🎙️ {name}\n⏱ 00:0{n}\n{text}\n\n",
        "**[00:00:0{n}] {name}** {text}\n\n", "10:0{n} < {name}> {text}\n", '"{text}"\n— {name}\n\n', "{caps}.\n{text}\n\n",
    ],
)  # fmt: skip
def test_a_notation_of_names(read, line):
    turns = [line.format(n=n, name=name, caps=name.upper(), text=text) for n, (name, text) in enumerate(EXPECTED, 1)]
    transcript = read("".join(turns))
    assert [(name.title(), text.strip('"')) for name, text in said(transcript)] == EXPECTED
    assert not transcript.is_doubtful


def test_titles_before_names_and_one_letter_for_question_and_answer(read):
    names = ["M. le ministre", "Mme Claire Dupont"] * 4
    transcript = read("".join(f"{name}. {text}\n\n" for name, text in zip(names, LINES, strict=True)))
    assert [name for name, _ in said(transcript)] == names and not transcript.is_doubtful
    transcript = read("".join(f"{'PR'[n % 2]}. {text}\n\n" for n, text in enumerate(LINES)), "b.txt")
    assert [name for name, _ in said(transcript)] == ["P", "R"] * 4


def test_short_sentences_are_no_labels(read):
    lines = [f"{('Yeah. ', '', 'Right. ', '')[n % 4] * (n < 9)}{word} it was\n" for n, word in enumerate(WORDS.split())]
    transcript = read("".join(lines))
    assert transcript.speakers == () and not transcript.is_doubtful, transcript.doubts


def test_several_turns_in_a_line_and_a_semicolon_for_a_colon(read):
    assert said(read(" ".join(f"{name}: {text}" for name, text in EXPECTED))) == EXPECTED
    lines = [f"{name}{';' if n in (3, 6) else ':'} {text}\n" for n, (name, text) in enumerate(EXPECTED)]
    assert said(read("".join(lines), "b.txt")) == EXPECTED


def test_fields_in_any_language_before_the_turns_are_no_speakers(read):
    turns = "".join(f"{name}: {text}\n\n" for name, text in EXPECTED)
    transcript = read(f"Aineisto: FSD12 Kylän muisti\nHaastattelun päiväys: 12.5.2004\n\n{turns}")
    assert said(transcript) == EXPECTED and transcript.header[0] == ("Aineisto", "FSD12 Kylän muisti")


def test_chapters_are_no_speech(read):
    chapters = "".join(f"{time} {title}\n" for time, title in CHAPTERS)
    with_list = read(
        "".join([f"Chapters:\n{chapters}\n", *(f"**[00:0{n}] {a}** {b}\n\n" for n, (a, b) in enumerate(EXPECTED))])
    )
    assert said(with_list) == EXPECTED
    between = "".join(
        f"{CHAPTERS[n // 2][0]} {CHAPTERS[n // 2][1]}\n\n{a}: {b}\n\n" if n % 2 == 0 else f"{a}: {b}\n\n"
        for n, (a, b) in enumerate(EXPECTED)
    )
    transcript = read(between, "b.txt")
    assert said(transcript) == EXPECTED and not transcript.is_doubtful
    numbered = read("".join(f"Chapitre {n} : La cloche\n0:{n}0 {text}\n" for n, text in enumerate(LINES)), "c.txt")
    assert said(numbered) == [("Unknown Speaker", WORDS)]


def test_chapters_without_speech_are_reported(read):
    text = "The full talk about bells, with questions.\n\n" + "".join(f"{time} {title}\n" for time, title in CHAPTERS)
    transcript = read(f"{text}\nFollow us, and write to us whenever you like.\n")
    assert transcript.is_doubtful and "are too few for speech" in transcript.doubts[0]


@pytest.mark.parametrize(
    ("name", "text", "doubt"),
    [
        ("a.csv", "time,level,message\n" + "10:00,INFO,Job 4 was started by the timer\n" * 30, "lines recur"),
        ("a.log", "".join(f"10:00:{n} [INFO] db: request {n} ended after 3 ms\n" for n in range(10, 40)), "lines recur"),
        ("a.txt", "".join(f"call_{n:03}.wav: {text}\n" for n, text in enumerate(LINES)), "codes of a markup"),
        ("a.txt", "".join(f"{text}=20and=E2=80=93so=\n" for text in LINES), "codes of a markup"),
        ("a.csv", "start,Words\n" + "".join(f'{n},"SPEAKER_0{n}:\n{text}"\n' for n, text in enumerate(LINES)), "labels of"),
        ("a.vtt", f"WEBVTT\n\n00:01.000 --> 00:09.000\n<v Ann>{WORDS}</v>\n\n" + f"{WORDS}\n", "not part of a cue"),
    ],
)  # fmt: skip
def test_files_of_other_things_are_reported(read, name, text, doubt):
    transcript = read(text, name)
    assert transcript.is_doubtful and doubt in " ".join(transcript.doubts)


def test_a_word_that_starts_like_a_label_is_no_label(read):
    words = [{"word": word, "start": n, "end": n + 1} for n, word in enumerate(f"so {WORDS} so persona".split())]
    transcript = read(json.dumps({"segments": [{"text": f"so {WORDS} so persona", "words": words}]}), "a.json")
    assert not transcript.is_doubtful


@pytest.mark.parametrize("key", ["from", "user", "author", "participant"])
def test_names_within_objects(read, key):
    who = {n: {"id": f"U{n % 2}", "displayName": name} for n, name in enumerate(NAMES)}
    entries = [{key: who[n], "text": text, "timeOffset": 4 * n} for n, text in enumerate(LINES)]
    assert said(read(json.dumps({"messages": entries}), "a.json")) == EXPECTED
    blocks = {f"block-{n}": {key: who[n], "paragraph": text} for n, text in enumerate(LINES)}
    assert said(read(json.dumps({"blocks": blocks}), "b.json")) == EXPECTED


def test_exports_of_chats(read):
    parts = [{"from": name, "text": [text[:5], {"type": "bold", "text": text[5:]}]} for name, text in EXPECTED]
    assert said(read(json.dumps({"messages": parts}), "telegram.json")) == EXPECTED
    slack = [{"user": "U1", "user_profile": {"real_name": name}, "text": text, "ts": "1"} for name, text in EXPECTED]
    assert said(read(json.dumps(slack), "slack.json")) == EXPECTED
    joined = "21:00 -!- bob has joined #bells\n" + "".join(
        f"21:0{n} <{a[:3]}> {b}\n" for n, (a, b) in enumerate(EXPECTED)
    )
    assert [name for name, _ in said(read(f"{joined}21:55 -!- ann has quit [bye]\n", "irc.txt"))] == ["Ann", "Bob"] * 4


def test_several_json_documents_and_a_table_with_tabs(read):
    texts = "\n".join(json.dumps({"text": text, "result": [{"word": "So", "start": 1}]}, indent=1) for text in LINES)
    assert said(read(texts, "a.json")) == [("Unknown Speaker", WORDS)]
    rows = [f"{n}.0\t{n}.9\tSPEAKER_0{n % 2}\t{text}" for n, text in enumerate(LINES)]
    transcript = read("\n".join(rows), "a.tsv")
    assert [name for name, _ in said(transcript)] == ["SPEAKER_00", "SPEAKER_01"] * 4


def test_speakers_in_the_classes_and_attributes_of_pages(read):
    rows = "".join(f'<div><span class="who">{a}</span><span class="text">{b}</span></div>' for a, b in EXPECTED)
    page = f"<html><body>{rows}<h2>Leave a comment</h2><p>Your address will not be published.</p></body></html>"
    assert said(read(page, "a.html")) == EXPECTED
    tei = "".join(f'<u who="#{a.split()[0]}">{b}</u>' for a, b in EXPECTED)
    transcript = read(f"<?xml version='1.0'?><TEI><text><body>{tei}</body></text></TEI>", "a.xml")
    assert [name for name, _ in said(transcript)] == ["Ann", "Bob"] * 4


def test_effects_and_shapes_of_subtitles_are_no_words(read):
    cues = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n{{\\an8}}{text}\n\n" for n, text in enumerate(LINES, 1))
    assert said(read(cues, "a.srt")) == [("Unknown Speaker", WORDS)]
    head = "[Script Info]\n[Events]\nFormat: Start, Name, Text\n"
    shape = "Dialogue: 0:01:00.00,,{\\p1}m 0 0 l 100 0{\\p0}\n"
    events = "".join(f"Dialogue: 0:00:0{n}.00,{a},{{\\pos(1,2)}}{b}\n" for n, (a, b) in enumerate(EXPECTED))
    assert said(read(head + events + shape, "a.ass")) == EXPECTED


def test_captions_of_one_speaker(read):
    cues = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\nAnn: {text}\n\n" for n, text in enumerate(LINES, 1))
    transcript = read(cues, "a.srt")
    assert said(transcript) == [("Ann", WORDS)] and not transcript.is_doubtful
    slides = "".join(f"{text}\n\n{'slide: the bell' if n % 2 else text}\n\n" for n, text in enumerate(LINES))
    assert read(slides, "b.txt").speakers == () or read(slides, "b.txt").is_doubtful


def test_chats_of_several_days(read):
    days = ["1/22/22, 3:20 PM - ", "1/23/22, 9:10 AM - "]
    lines = [f"{days[n // 4]}{name}: {text}\n" for n, (name, text) in enumerate(EXPECTED)]
    numbers = [f"{days[1]}+91 91586 7604{n}: {text}\n" for n, text in enumerate(LINES[:2])]
    transcript = read("".join([*lines, f"{days[1]}Bob Reece left\n", *numbers]))
    phones = [f"+91 91586 7604{n}" for n in range(2)]
    assert said(transcript) == [*EXPECTED, *zip(phones, LINES, strict=False)] and not transcript.is_doubtful
    assert transcript.skipped[0].reason == "message of the chat program"


def test_labels_that_are_not_among_the_participants_are_reported(read):
    turns = "".join(f"{name.split()[0]}: {text}\n\n" for name, text in EXPECTED)
    top = "Date: May 3\nDuration: 1 hour\nParticipants: Ann Lee (host), Bob Reece (guest)\n\n"
    transcript = read(f"{top}{turns}Timeline: nine months, or a year.\n\nAnn: Good.\n")
    assert [name for name, _ in said(transcript)] == [*["Ann", "Bob"] * 4, "Ann"] and transcript.is_doubtful
    assert transcript.turns[7].text.endswith("Timeline: nine months, or a year.")


def test_a_field_at_the_end_of_the_header_is_no_turn(read):
    turns = "".join(f"{('Doctor', 'Patient')[n % 2]}: {text}\n\n" for n, text in enumerate(LINES))
    transcript = read(f"A visit\n\nDate: May 3\nProvider: Dr. Ann Lee\nPatient: Bob Reece, 47\n\n{turns}")
    assert [name for name, _ in said(transcript)] == ["Doctor", "Patient"] * 4
    assert transcript.header[-1] == ("Patient", "Bob Reece, 47")


def test_a_numbered_list_is_reported(read):
    items = "\n".join(
        f"{n}. The {word} of the bell and what we think about it (5 min)" for n, word in enumerate("abcdef", 1)
    )
    assert "are numbered, as in a list" in " ".join(read(f"# Agenda\n\n{WORDS}\n\n{items}\n", "a.md").doubts)


def test_a_written_name_beside_a_label(read):
    labels = {"Ann Lee": "A", "Bob Reece": "B"}
    entries = [{"speaker": labels[name], "speakerLabel": name, "text": text} for name, text in EXPECTED]
    assert said(read(json.dumps({"utterances": entries}), "a.json")) == EXPECTED


def test_lines_and_times_in_turn_have_no_names(read):
    lines = ["WELL, SEYMOUR", "WELCOME", "THE ROAST IS RUINED.", "AURORA BOREALIS", "THANK YOU.", "STEAMED HAMS."] * 3
    transcript = read("".join(f"00:{n:02d}\n{line}\n" for n, line in enumerate(lines)))
    assert said(transcript) == [("Unknown Speaker", " ".join(lines))]


def test_turns_within_one_text_of_json(read):
    dialogue = " ".join(f"{name}: {text}" for name, text in EXPECTED)
    segment = {"speaker": "Speaker A", "start": 0, "end": 60, "text": dialogue}
    assert said(read(json.dumps({"segments": [segment]}), "a.json")) == EXPECTED
    several = read(json.dumps([{"type": "sprint", "transcript": dialogue}] * 2), "b.json")
    assert said(several) == EXPECTED * 2


def test_text_of_roll_up_captions_is_read_once(read):
    text = "Kind: captions\nLanguage: en\n" + "".join(f"{text}\n" * 3 for text in LINES)
    assert said(read(text)) == [("Unknown Speaker", WORDS)]


def test_a_list_of_words_is_reported(read):
    transcript = read("\n".join(f"{word}-{n}" for n, word in enumerate(WORDS.split())))
    assert "words on average, as in a list" in " ".join(transcript.doubts) and transcript.is_doubtful


def test_text_under_an_unknown_key_of_json(read):
    dialogue = "\n\n".join(f"{name}: {text}" for name, text in EXPECTED)
    transcript = read(json.dumps({"redacted_text": dialogue}), "a.json")
    assert said(transcript) == EXPECTED and transcript.doubts == ("the value of 'redacted_text' is taken for the text",)
    assert transcript.is_doubtful


def test_a_page_with_few_words_and_a_corpus_of_audio_files_are_reported(read):
    script = "<script>" + "let subtitles = [];\n" * 600 + "</script>"
    page = read(f"<html><body>{script}<p>00:00 Player</p><p>Space=pause, F=full</p></body></html>", "a.html")
    assert "words were found in a file of" in page.doubts[-1]
    corpus = read("".join(f"call/call_{n:04}.wav|{text}|x\n" for n, text in enumerate(LINES)), "b.txt")
    assert corpus.is_doubtful and "codes of a markup" in " ".join(corpus.doubts)


def test_a_field_after_the_last_turn_is_no_speech(read):
    turns = "".join(f"{name.split()[0]}:\n{text}\n\n" for name, text in EXPECTED)
    transcript = read(f"{turns}[End of Transcript]\nDuration: 57 minutes\n")
    assert transcript.turns[-1].text == LINES[-1] and not transcript.is_doubtful
    assert [each.reason for each in transcript.skipped] == ["end mark", "field at the end"]


def test_a_page_of_definitions_is_reported(read):
    page = "# Questions\n\n" + "".join(f"What does it mean ({n})?\n:   {text}\n\n" for n, text in enumerate(LINES))
    transcript = read(page, "a.md")
    assert transcript.is_doubtful and "it has 8 definitions" in " ".join(transcript.doubts)


def test_a_name_after_a_time_and_the_word_speaker(read):
    turns = [f"[00:00:0{n}.550] - SPEAKER: {'FM'[n % 2]}1\n{text}\n\n" for n, text in enumerate(LINES)]
    transcript = read("".join(turns), "a.vtt")
    assert said(transcript) == [(f"{'FM'[n % 2]}1", text) for n, text in enumerate(LINES)]
    assert not transcript.is_doubtful and transcript.turns[1].time == "00:00:01"
    transcript = read(
        "".join(f"[00:00:0{n}] Speaker: {text}\n" for n, text in enumerate(["Right", "Yes", *LINES])), "b.txt"
    )
    assert {name for name, _ in said(transcript)} == {"Speaker"}


def test_a_bold_channel_before_a_link_names_no_speaker(read):
    top = "---\nLength: 325s\n---\n\n# The Bell\n**Harbor News:** [February 18, 2022](https://example.com/watch?v=1)\n"
    transcript = read(top + "".join(f"*  {text}\n" for text in LINES[2:] * 2), "a.md")
    assert {name for name, _ in said(transcript)} == {"Unknown Speaker"} and not transcript.is_doubtful
    assert transcript.turns[0].text.startswith(LINES[2]) and "Harbor News" in dict(transcript.header)


@pytest.mark.parametrize(
    ("question", "answer"), [("Pergunta", "Resposta"), ("Frage", "Antwort"), ("Question", "Answer")]
)
def test_numbered_questions_before_a_dash(read, question, answer):
    turns = [
        f"{answer}: {text}\n\n" if n % 2 else f"{question} {n // 2 + 1} - {text}\n" for n, text in enumerate(LINES)
    ]
    transcript = read("INTERVIEW WITH ANN LEE: Keeper of the bell\n\n" + "".join(turns))
    assert said(transcript) == [((question, answer)[n % 2], text) for n, text in enumerate(LINES)]
    assert not transcript.is_doubtful
    faq = read("".join(f"{question} {n} - {text[:-1]}?\n\n" for n, text in enumerate(LINES, 1)), "b.txt")
    assert faq.is_doubtful


def test_codes_of_speakers_below_a_line_of_another_kind(read):
    codes = ["abc1967f", "xyz1929m"] * 4
    lines = [f"{code} {text.lower()}\n" for code, text in zip(codes, LINES, strict=True)]
    transcript = read("begin = 0:58:57\n" + "".join(lines))
    assert said(transcript) == list(zip(codes, map(str.lower, LINES), strict=True))

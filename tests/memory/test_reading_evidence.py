"""Turns are found from what recurs in a text, in notations that no reader knows; what breaks a text's habit is no speech."""

import json

import pytest
from read_texts import said
from test_transcript_fuzz import deadline

NAMES = ("Ann Lee", "Bob Reece", "Dr. Cid Moore")
TEXTS = [
    "So the bell rang at three, and nobody was there.", "Did it?", "It did: twice, in fact.", "“Twice” is odd.",
    "Well. We had no clock.", "And the tide?", "12 of us saw it leave.", "Then I will write that down, as it was said.",
]  # fmt: skip
TURNS = [(NAMES[n % len(NAMES)], text) for n, text in enumerate(TEXTS * 2)]


def written(line: str, names=NAMES) -> tuple[str, list[tuple[str, str]]]:
    """The text of the turns in a notation, and the turns."""
    turns = [(names[n % len(names)], text) for n, (_, text) in enumerate(TURNS)]
    return "".join(line.format(name=name, text=text, n=n) for n, (name, text) in enumerate(turns)), turns


@pytest.mark.parametrize(
    "line",
    [
        "{name} => {text}\n\n",
        "{name} ~ {text}\n",
        "● {name}  {text}\n",
        "tape4 {n} {name} # {text}\n",
        "'''{name}:''' {text}\n\n",
        "{name}: — {text}\n",
        "{name} says: {text}\n",
        "{n} {name}= {text}\n",
        "#{n} {name}: {text}\n",
        "| {n}.5 | {name} | {text} |\n",
        "{name}\t\t{n}.5\t{n}.9\t{text}\n",
        "\\\\textbf{{{name}:}} {text}\n\n",
        "<{name}>: {text}\n",
        "({n}:00) {name}, {n}:05:\n{text}\n\n",
    ],
)
def test_a_notation_that_no_reader_knows_is_read_from_what_recurs(read, line):
    text, turns = written(line)
    transcript = read(text)
    assert said(transcript) == turns
    assert not transcript.is_doubtful, transcript.doubts


@pytest.mark.parametrize(
    "names",
    [("El señor PRESIDENTE", "La señora GARCÍA"), ("○議長（山田）", "○鈴木君"), ("mod1", "p_2"), ('היו"ר לוי', "כהן")],
)
def test_labels_of_any_shape_that_recur_at_every_turn_are_speakers(read, names):
    text, turns = written("{name}: {text}\n\n", names)
    assert said(read(text)) == [(name.removeprefix("○"), words) for name, words in turns]


def test_turns_of_wrapped_lines_that_start_with_an_indent(read):
    names = ("Mr. SMITH of Texas", "The SPEAKER pro tempore")
    text, turns = written("  {name}. {text}\nand so it was on that day, as far\nas anybody knows.\n", names)
    more = "and so it was on that day, as far as anybody knows."
    assert said(read(text)) == [(name, f"{words} {more}") for name, words in turns]


def test_a_few_names_in_an_uncertain_notation_are_reported(read):
    lines = [f"Then we went on to the pier, and the {n}th bell was heard again by all of us.\n\n" for n in range(30)]
    names = [f"{name}, {text}\n\n" for name, text in TURNS[:9]]
    transcript = read("".join(line + (names[n // 3] if n % 3 == 0 and n < 27 else "") for n, line in enumerate(lines)))
    assert transcript.is_doubtful and "many lines start alike" in " ".join(transcript.doubts)


def test_titles_between_turns_and_a_publisher_after_them_are_no_speech(read):
    text, turns = written("{name}: {text}\n\n")
    parts = text.split("\n\n")
    page = "\n\n".join(
        [*parts[:6], "The clock in the hall", *parts[6:-1], "© Tower Radio. All rights reserved.", "Subscribe to us."]
    )
    transcript = read(page)
    assert said(transcript) == turns
    assert [skip.reason for skip in transcript.skipped] == [
        "title between turns",
        "after the last turn",
        "after the last turn",
    ]


def test_a_second_paragraph_that_only_the_last_turn_has_is_reported(read):
    text, _ = written("{name}: {text}\n\n")
    transcript = read(f"{text}This was the third of our evenings on the pier.\n")
    assert transcript.is_doubtful and "may be no part of a turn" in transcript.doubts[0]


def test_a_title_with_a_colon_is_no_turn(read):
    text, turns = written("{name}: {text}\n\n")
    transcript = read(f"The bell keeper: half a century of waiting\n\n{text}")
    assert said(transcript) == turns and transcript.header[0][0] == "The bell keeper"


def test_times_in_numbers_before_words_and_times_spelled_below_times(read):
    numbers = read("".join(f"{n}.000000\t{n + 1}.500000\t{text}\n" for n, text in enumerate(TEXTS * 2)))
    assert [turn.text for turn in numbers.turns] == [" ".join(TEXTS * 2)] and numbers.turns[0].marks[1][1] == "00:00:02"
    spelled = read("".join(f"{n}:05\n{n} Minuten, 5 Sekunden\n{text}\n" for n, text in enumerate(TEXTS, 1)), "b.txt")
    assert [turn.text for turn in spelled.turns] == [" ".join(TEXTS)]


def test_a_table_with_headings_in_any_words(read):
    rows = "".join(f'{n},{name},"{text}",{("yes", "no")[n % 3 == 0]}\n' for n, (name, text) in enumerate(TURNS))
    assert said(read(f"seq,who_is_talking,what_was_said,checked\n{rows}", "a.csv")) == TURNS


def test_empty_speakers_of_a_table_are_the_one_before_only_if_labels_mark_changes(read):
    def table(labels: list[str]) -> str:
        return "speaker,text\n" + "".join(f"{label},Line {n} of them.\n" for n, label in enumerate(labels))

    changes = read(table(["Ann", "", "Bob", "", "Ann", "Bob", "", ""]), "a.csv")
    assert [turn.speaker for turn in changes.turns] == ["Ann", "Bob", "Ann", "Bob"] and not changes.is_doubtful
    assert read(table(["Ann", "", "", "Ann", "", "Bob", "", "Bob"]), "b.csv").is_doubtful


@pytest.mark.parametrize(
    "element", ["<div><i>{time}</i><b class='n'>{name}</b> {text}</div>", "<li><b>{name}</b> {text}</li>"]
)
def test_the_element_of_a_page_whose_words_recur_names_the_speakers(read, element):
    turns = [(("annl", "bob_42")[n % 2], text) for n, (_, text) in enumerate(TURNS)]
    rows = "".join(element.format(name=name, text=text, time=f"0:{n:02d}") for n, (name, text) in enumerate(turns))
    page = f"<html><body><nav><a>Home</a></nav><h1>The Bell</h1>{rows}<footer>© Tower Radio</footer></body></html>"
    transcript = read(page, "a.html")
    assert said(transcript) == turns and not transcript.is_doubtful
    assert ("© Tower Radio", "not the content of the page") in [(skip.text, skip.reason) for skip in transcript.skipped]


@pytest.mark.parametrize("style", ["[{name}] {text}", "{name} - {text}", "({name}) {text}"])
def test_captions_name_speakers_in_any_notation(read, style):
    def cue(n: int, words: str) -> str:
        return f"{n}\n00:00:{n:02d},000 --> 00:00:{n:02d},900\n{words}\n\n"

    captions = [cue(n, style.format(name=name, text=text)) for n, (name, text) in enumerate(TURNS, 1)]
    assert said(read("".join(captions), "a.srt")) == TURNS


def test_of_several_columns_with_values_that_recur_the_one_with_names_is_the_speakers(read):
    rows = "".join(
        f'{("yes", "no")[n % 3 == 0]}\t0.9{n % 3}\t{name}\t"{text}"\n' for n, (name, text) in enumerate(TURNS)
    )
    assert said(read(rows, "a.txt")) == TURNS


def test_the_text_of_entries_under_an_unknown_key(read):
    entries = [{"who": name, "start": n, "phrase": text} for n, (name, text) in enumerate(TURNS)]
    assert said(read(json.dumps(entries), "a.json")) == TURNS
    unsure = read(json.dumps([{key: entry[key] for key in ("who", "phrase")} for entry in entries]), "b.json")
    assert said(unsure) == TURNS and unsure.is_doubtful


def test_questions_with_their_answers_are_two_turns(read):
    pairs = [{"question": f"What of bell {n}?", "answer": f"It rang at {n}, as it was said."} for n in range(4)]
    expected = [(key.capitalize(), text) for pair in pairs for key, text in pair.items()]
    assert said(read(json.dumps({"interview": pairs}), "a.json")) == expected
    table = "Question,Answer\n" + "".join(f'{pair["question"]},"{pair["answer"]}"\n' for pair in pairs)
    assert said(read(table, "b.csv")) == expected


def test_a_label_that_is_always_followed_by_the_same_words_is_reported(read):
    text, _ = written("{name}: {text}\n\n")
    parts = text.split("\n\n")
    notice = "Editor's note: this part was cut for length."
    transcript = read("\n\n".join([*parts[:4], notice, *parts[4:9], notice, *parts[9:]]))
    assert transcript.is_doubtful and "labels that may be no speakers" in " ".join(transcript.doubts)


def test_participants_with_their_offices_before_bold_names_are_no_turns(read):
    text, turns = written("**{name}:** {text}\n\n")
    transcript = read(f"Participants\nAnn Lee: Chair\nBob Reece: Treasurer\n\n{text}", "a.md")
    assert said(transcript) == turns


def test_a_single_name_before_the_words_is_a_label_only_if_it_is_no_word_of_the_text(read):
    names = ("annl", "bob_42")
    turns = [(names[n % 2], text) for n, text in enumerate(TEXTS)]
    assert said(read("".join(f"{name} {text}\n\n" for name, text in turns))) == turns
    prose = read(
        "".join(f"{('Well', 'Now')[n % 2]} {text} Well, now it is so.\n\n" for n, (_, text) in enumerate(TURNS))
    )
    assert prose.speakers == ()


def test_a_label_that_occurs_once_in_a_found_notation_is_a_turn_or_reported(read):
    text, turns = written("{name} said: {text}\n\n")
    parts = text.split("\n\n")
    once = read("\n\n".join([*parts[:6], "Eve Stone said: I saw it, too.", *parts[6:]]))
    assert said(once) == [*turns[:6], ("Eve Stone", "I saw it, too."), *turns[6:]] and not once.is_doubtful
    assert read("\n\n".join([*parts[:6], "somebody else: I saw it, too.", *parts[6:]]), "b.txt").is_doubtful


def test_time_grows_in_proportion_to_the_number_of_turns(read):
    lines = [f"{NAMES[n % 3]}: {TEXTS[n % 8]} It was bell {n} of them.\n" for n in range(8000)]
    with deadline(15.0):
        assert len(read("".join(lines)).turns) == 8000


def test_what_precedes_the_words_of_all_turns_is_no_speech(read):
    text, turns = written("[{name}] [AM 10:{n}0] {text}\n")
    assert said(read(text)) == turns


def test_numbers_of_pages_count_up(read):
    text, turns = written("{name}: {text}\n\n")
    parts = text.split("\n\n")
    pages = ["41", *parts[:6], "42", *parts[6:12], "43", *parts[12:]]
    transcript = read("\n\n".join(pages))
    assert said(transcript) == turns and [skip.text for skip in transcript.skipped] == ["41", "42", "43"]


def test_names_before_the_times_of_cues_are_speakers(read):
    cues = [
        f'{n} "{name}" (31{n})\n00:00:{n:02d}.000 --> 00:00:{n:02d}.900\n{text}\n'
        for n, (name, text) in enumerate(TURNS, 1)
    ]
    transcript = read("WEBVTT\n\n" + "\n".join(cues), "a.vtt")
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_turns_without_names_an_email_and_articles_are_reported(read):
    dashes = read("\n\n".join(f"– {text} It was so, and so it stayed for long." for text in TEXTS))
    assert dashes.is_doubtful and "start with a dash" in " ".join(dashes.doubts)
    email = read(f"From: Ann Lee\nTo: Bob Reece\nSubject: The bell\n\nHi Bob,\n\n{' '.join(TEXTS * 2)}\n", "b.txt")
    assert email.is_doubtful and "it may be an e-mail" in " ".join(email.doubts)
    entries = [{"author": name, "title": f"Bell {n}", "content": text} for n, (name, text) in enumerate(TURNS)]
    assert read(json.dumps(entries), "c.json").is_doubtful


def test_a_printed_hearing_with_titled_names_and_wrapped_lines(read):
    names = ("The Chairman", "Mr. Reece", "Ms. Lee of Texas")
    said_by = [(names[n % 3], f"{text} To {'abcdefghijklmnopqrstuvwxyz'[n] * 3}.") for n, text in enumerate(TEXTS * 3)]
    body = "".join(
        f"    {name}. {text}\nI thank the gentleman for all of this, as far\nas I know.\n    It was\nso, at that time.\n"
        for name, text in said_by
    )
    front = "[House Hearing, 110 Congress]\n\n         THE BELL AND THE TIDE\n\n" + "\n".join(
        f"ANN {letter}. LEE, North Carolina          BOB {letter}. REECE, Florida"
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    front += "\n" + "".join(f"    Opening statement of Reece{'.' * 30}  {n}\n" for n in range(30))
    end = "    [Whereupon, at 3:51 p.m., the hearing was adjourned.]\n\n            A P P E N D I X\n\nAnother statement.\n"
    expected = [
        (name, f"{text} I thank the gentleman for all of this, as far as I know. It was so, at that time.")
        for name, text in said_by
    ]
    for name, written in (
        ("a.txt", "{}"),
        ("a.htm", "<html>\n<title> - A BELL</title>\n<body><pre>\n{}</pre></body></html>\n"),
    ):
        transcript = read(written.format(front + "\n\n" + body + end), name)
        assert said(transcript) == expected
        assert not transcript.is_doubtful, transcript.doubts

"""Labels of unusual shapes, lists of participants, and other first lines that are no turns."""

import pytest
from read_texts import said
from test_reading_evidence import TEXTS
from test_reading_signals import LINES

TURNS = [(("Ann", "Bob")[n % 2], text) for n, text in enumerate(TEXTS * 2)]


def lines(turns) -> str:
    return "".join(f"{name}: {text}\n\n" for name, text in turns)


@pytest.mark.parametrize("label", ["(UNKNOWN)", "???", "(CROWD)", "[ALL]", "A&B"])
def test_a_label_of_signs_and_capitals_among_turns_is_a_speaker(read, label):
    turns = [*TURNS[:5], (label, "Is this in the rules?"), *TURNS[5:]]
    expected = [(name.strip("[]"), text) for name, text in turns]
    assert said(read(lines(turns))) == expected


def test_a_struck_label_is_a_speaker(read):
    text = lines([*TURNS[:5], ("~~C~~", "Is this in the rules?"), *TURNS[5:]])
    assert ("C", "Is this in the rules?") in said(read("# A talk\n\n" + text, "a.md"))


def test_capitals_within_speech_are_no_label(read):
    turns = [*TURNS[:4], ("Ann", 'Then it said\n"STOP!": nobody did.'), ("Bob", "At\n12: the end."), *TURNS[4:]]
    assert {name for name, _ in said(read(lines(turns)))} == {"Ann", "Bob"}


def test_a_line_in_brackets_that_names_who_is_who_is_no_turn(read):
    text = "[Topic: Tides]\n[Ann: the host | Bob: Dr. Reece]\n\n" + lines(TURNS)
    assert said(read(text)) == TURNS


def test_roles_of_the_people_who_speak_are_no_turns(read):
    roles = "* **Host:** Ann\n* **Guest 1:** Bob (a baker)\n"
    text = f"## A talk\n\n**Participants:**\n{roles}\n**Start**\n\n"
    text += "".join(f"**{name}:** {words}\n\n" for name, words in TURNS)
    transcript = read(text)
    assert said(transcript) == TURNS
    assert ("Host", "Ann") in transcript.header


def test_people_who_are_there_are_no_turns_in_whatever_language(read):
    text = "## Roda\n\n**Participantes:**\n\n* **Entrevistadora:** Ann\n* **Entrevistado 1:** Bob (padeiro)\n\n**Início**\n\n"
    assert said(read(text + "".join(f"**{name}:** {words}\n\n" for name, words in TURNS))) == TURNS


def test_numbered_pages_are_no_speakers(read):
    text = "".join(f"Page-{max(n, 2)}: {words}\nSo it was.\n" for n, words in enumerate(TEXTS * 3))
    assert read(text).is_doubtful
    pupils = "".join(f"학생{n % 4}: {words}\n" for n, words in enumerate(TEXTS * 3))
    assert not read(pupils).is_doubtful


def test_a_first_question_in_bold_is_no_title(read):
    text = "**You run the mill.**\n**Can you say how it began?**\n\n" + "\n\n".join(TEXTS * 3)
    assert said(read(text, "a.md"))[0][1].startswith("You run the mill. Can you say how it began?")


def test_a_bold_name_after_a_long_time_is_whole(read):
    text = "".join(f"**#00:0{n}:22-6# {name}:** {words}\n\n" for n, (name, words) in enumerate(TURNS[:9]))
    assert said(read(text, "a.md")) == TURNS[:9]


def test_a_speaker_within_a_line_is_another_turn(read):
    turns = [*TURNS, ("Ann", "You're the man?")]
    text = lines(turns) + "Bob: You're chairman of the board? Ann: I am the old one. I'm back.\n\nBob: Thank you.\n\n"
    expected = [
        *turns,
        ("Bob", "You're chairman of the board?"),
        ("Ann", "I am the old one. I'm back."),
        ("Bob", "Thank you."),
    ]
    assert said(read(text)) == expected


def test_the_start_of_another_file_within_the_text_is_a_doubt(read):
    text = (
        "A talk\n\n"
        + " ".join(TEXTS)
        + r" {\rtf1\ansi\ansicpg1252\cocoartf2822 \f0\fs24 \cf0 So it was said. "
        + " ".join(TEXTS)
    )
    assert read(text).is_doubtful


def test_a_cell_of_a_table_is_no_certain_label(read):
    assert read(lines([("Ann | ECH" if name == "Ann" else name, text) for name, text in TURNS])).is_doubtful


TITLED = [
    "Ann Lee, President and Chief Executive Officer, The Bell Works Corporation of Harbour",
    "Bob Reece, Executive Vice President and Chief Financial Officer, Bell Works Corporation",
    "Tim, Call Coordinator",
]


def test_names_with_long_titles_start_turns(read):
    turns = [(TITLED[n % 3], words) for n, words in enumerate([*LINES, *LINES][:9])]
    text = "".join(f"{name}: {words}\n\n" for name, words in turns)
    transcript = read(f"Full text - Bell Works:\n\n{text}")
    assert said(transcript) == turns and not transcript.is_doubtful


def test_a_comma_does_not_make_a_sentence_a_label(read):
    text = "".join(
        f"{words} We saw Rome, Paris and the Harbour of Bells, all in one week: it was fine.\n\n" for words in LINES
    )
    assert read(text).speakers == ()


def test_a_direction_between_a_label_and_its_colon_is_part_of_the_turn(read):
    names = ["Chair Lee", "Member Reece", "Member Hobbs"]
    direction = "(at the proper time and place, after taking the chair and striking the bell on the table)"
    turns = [(names[n % 3], words) for n, words in enumerate([*LINES, *LINES][:9])]
    text = "".join(f"{name}: {words}\n\n" for name, words in turns)
    transcript = read(f"Meeting of the Board\n\n{text.replace('Lee:', f'Lee {direction}:', 1)}")
    assert said(transcript) == [(names[0], f"{direction} {turns[0][1]}"), *turns[1:]] and not transcript.is_doubtful


def test_numbered_headings_of_several_transcripts_are_no_speakers(read):
    parts = [f"Transcript {n}:\n\n{lines(TURNS[:5])}" for n in (1, 2, 3)]
    transcript = read("Calls\n\n" + "".join(parts))
    assert said(transcript) == TURNS[:5] * 3 and not transcript.is_doubtful


def test_a_word_said_once_by_a_member_among_others_is_no_title(read):
    turns = [("Chair Lee", f"{words} Shall we vote on it?") for words in LINES]
    members = [
        f"Member {name}" for name in ("Reece", "Hobbs", "Malone", "Brown", "Hayes", "Adams", "Garland", "Duckett")
    ]
    text = "".join(f"{lines([turn])}{member}: Seconded\n\n" for turn, member in zip(turns, members, strict=True))
    transcript = read(text)
    assert transcript.speakers == ("Chair Lee", *members) and not transcript.is_doubtful

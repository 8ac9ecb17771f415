"""Rows that are quoted between blanks, that are links, and questions with the one who answers."""

import json

import pytest
from read_texts import said

TURNS = [
    ("Ann Lee", "So the bell rang at three, and nobody was there."),
    ("Bob Reece", "I think that is right, a clock was fast."),
    ("Ann Lee", "We had no idea, and what did you do?"),
    ("Bob Reece", "It cost five dollars, and took two days."),
    ("Ann Lee", 'They call it "the tide clock" in the hall.'),
    ("Bob Reece", "Nobody went out for three weeks after that."),
]


@pytest.mark.parametrize("has_row_names", [False, True])
def test_cells_that_are_quoted_between_blanks(read, has_row_names):
    cells = [(*([str(n)] if has_row_names else []), "03", f"{name}:\n", text) for n, (name, text) in enumerate(TURNS)]
    rows = "\n".join(" ".join('"' + cell.replace('"', '\\"') + '"' for cell in row) for row in cells)
    transcript = read(f'"Season" "The Character" "Text"\n{rows}\n'.replace("The Character", "Character"), "a.csv")
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_links_are_no_words(read):
    rows = "\n".join(f"{name} {n},Talk {n} (https://a.example/talk{n}.docx)" for n, (name, _) in enumerate(TURNS))
    assert read(f"Storyteller,Transcript\n{rows}\n", "a.csv").is_doubtful


def test_the_one_who_answers_is_named(read):
    entries = [
        {"question": text, "answer": answer, "candidate": name}
        for (_, text), (name, answer) in zip(TURNS[::2], TURNS[1::2], strict=True)
    ]
    expected = [("Question" if n % 2 == 0 else name, text) for n, (name, text) in enumerate(TURNS)]
    assert said(read(json.dumps({"list": entries}), "a.json")) == expected


def test_numbers_letters_and_single_words_are_no_speech(read):
    for head, cells in {
        "code,value": [f"{n}{n}1,{n}2389{n}000" for n in range(1, 30)],
        "row,text": [f"{n},{' '.join(text)}" for n, (_, text) in enumerate(TURNS)],
        "theme,word": [f"{name},{word}" for name, text in TURNS for word in text.replace(",", "").split()],
    }.items():
        rows = "\n".join(cells).replace('"', "")
        assert read(f"{head}\n{rows}\n", "a.csv").is_doubtful, head


def test_remarks_in_brackets_without_a_speaker_are_of_nobody(read):
    rows = [("", "[The hall of the clock. Ann waits.]"), *TURNS[:3], ("", "[A bell rings]"), *TURNS[3:]]
    lines = "\n".join(f"{name},{json.dumps(text.replace(chr(34), ''))}" for name, text in rows)
    transcript = read(f"speaker,text\n{lines}\n", "a.csv")
    expected = [(name or "Unknown Speaker", text.replace('"', "")) for name, text in rows]
    assert said(transcript) == expected and not transcript.is_doubtful


def test_mails_are_no_transcript(read):
    mails = [{"from": name, "to": ["cy@a.example"], "subject": "The bell", "body": text} for name, text in TURNS]
    assert read(json.dumps(mails), "a.json").is_doubtful

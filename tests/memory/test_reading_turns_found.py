"""Turns that a file marks in a way of its own: styles, null speakers, labels within lines; letters of another encoding."""

import json

import pytest
from read_texts import said
from test_reading_signals import EXPECTED, LINES, NAMES

from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript
from midthought.memory.turns import UNKNOWN_SPEAKER


def test_an_entry_with_an_explicit_null_is_of_another_speaker(read):
    entries = [{"speaker": name, "text": text} for name, text in EXPECTED]
    entries[3]["speaker"] = None
    expected = [*EXPECTED[:3], (UNKNOWN_SPEAKER, LINES[3]), *EXPECTED[4:]]
    assert said(read(json.dumps(entries), "a.json")) == expected


def test_a_label_in_an_object_of_the_speaker(read):
    entries = [{"speaker": {"speaker_label": f"spk_{n % 2}"}, "text": text} for n, text in enumerate(LINES)]
    transcript = read(json.dumps({"audio_segments": entries}), "a.json")
    assert transcript.speakers == ("spk_0", "spk_1") and not transcript.is_doubtful


@pytest.mark.parametrize("arrow", ["00:00:{:02d},000 --> 00:00:{:02d},900", "0:00:{:02d}.000,0:00:{:02d}.900"])
def test_words_after_a_blank_line_at_the_start_of_a_cue(read, arrow):
    cues = [f"{n + 1}\n{arrow.format(4 * n, 4 * n + 3)}\n{' ' * (n % 2)}\n{text}\n\n" for n, text in enumerate(LINES)]
    transcript = read("".join(cues), "a.srt")
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(LINES)


def test_styles_of_subtitles_that_are_labels_are_speakers(read):
    top = "[Script Info]\nTitle: a\n\n[Events]\nFormat: Layer, Start, End, Style, Name, Text\n"
    lines = [
        f"Dialogue: 0,0:00:{4 * n:02d}.00,0:00:{4 * n + 3:02d}.00,Speaker0{n % 2},,{text}\n"
        for n, text in enumerate(LINES)
    ]
    assert read(top + "".join(lines), "a.ass").speakers == ("Speaker00", "Speaker01")
    styled = "".join(lines).replace("Speaker00", "Main").replace("Speaker01", "Italics")
    assert read(top + styled, "a.ass").speakers == ()


def test_one_of_two_labels_stands_within_the_lines(read):
    lines = [
        f"Interviewer: {question} Robertson: {answer}\n\n"
        for question, answer in zip(LINES[::2], LINES[1::2], strict=True)
    ]
    names = ["Interviewer", "Robertson"] * 4
    assert said(read("".join(lines))) == list(zip(names, LINES, strict=True))


def test_those_present_are_no_speech_of_the_last_speaker(read):
    turns = "".join(f"**{name}**\n\n{text}\n\n" for name, text in EXPECTED)
    listed = "### Attendees\n\n* Ann Lee\n* Bob Reece\n* Carl Ruoff\n"
    assert said(read(turns + listed, "a.md")) == EXPECTED


def test_times_with_letters(read):
    lines = [f"0h{n:02d}m{7 * n:02d}s\n{text}\n\n" for n, text in enumerate(LINES)]
    transcript = read("".join(lines))
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(LINES) and transcript.has_times


def test_a_field_that_is_an_address(read):
    top = "<https://example.org/1>\n\nslides: <https://example.org/2>\n\n## The bell\n\n"
    transcript = read(top + " ".join(LINES), "a.md")
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(LINES)


def test_a_bold_label_is_whole(read):
    names = ["Ellen DeGeneres", "Jorja", *["Ellen", "Jorja"] * 7]
    words = [*LINES, *(f"Well, {line}" for line in LINES)]
    texts = [f"**{name}** {text}\n\n" for name, text in zip(names, words, strict=True)]
    assert said(read("".join(texts), "a.md")) == list(zip(names, words, strict=True))


def test_labels_of_transcriber_have_names(read):
    speakers = "".join(f'<Speaker id="spk{n}" name="{name}"/>' for n, name in enumerate(NAMES[:2]))
    turns = "".join(
        f'<Turn startTime="{4.5 * n}" speaker="spk{n % 2}" endTime="9"><Sync time="{4.5 * n}"/>{text}</Turn>'
        for n, text in enumerate(LINES)
    )
    page = f'<?xml version="1.0"?>\n<!DOCTYPE Trans SYSTEM "trans-14.dtd">\n<Trans><Speakers>{speakers}</Speakers>{turns}</Trans>'
    transcript = read(page, "a.trs")
    assert said(transcript) == EXPECTED and transcript.turns[1].time == "00:00:04"


def test_a_transcript_of_a_conference_call_starts_below_its_heading(read):
    top = (
        "Call participants\n\nChief Officer - Ann Lee\n\n"
        + "Net revenues were 770 million, up from 650 million.\n\n" * 9
    )
    turns = "".join(f"{name}:{text}\n\n" for name, text in EXPECTED * 2)
    assert said(read(f"{top}Full Conference Call Transcript\n\n{turns}"))[:8] == EXPECTED


def test_sentences_that_start_alike_are_no_labels(read):
    cues = "".join(
        f"{n + 1}\n00:00:{2 * n:02d},000 --> 00:00:{2 * n + 1:02d},900\nOkay, {text}\n\n"
        for n, text in enumerate(LINES)
    )
    assert not read(cues, "a.srt").is_doubtful


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("Ő űrhajós volt, és főzött: öt ízű, híg főzeléket. Apád itthon van? Jöjj beljebb, kérlek, fűtök.", "cp1250"),
        (
            "L'été dernier, où étais-tu ? Là-bas, à côté de la forêt, ça c'est sûr, le maïs était déjà mûr. "
            "Il pleut sur la ville et le vent vient du nord; on ferme les volets avant la nuit, puis on attend.",
            "cp1252",
        ),
        (
            "Não sei se ela põe à mesa o pão; três irmãs estão aí, e o avô já está com vocês à noite, ação. "
            "A casa fica perto do rio, com um barco velho na porta, e o pai dela conserta redes de pesca.",
            "cp1252",
        ),
        (
            "Później mężczyzna wrócił i powiedział, że łódź już wypłynęła; i żaden człowiek nie wyszedł ze środka.",
            "cp1250",
        ),
        (
            "Ráno jsme šli k moři, ale staré hodiny odbily třikrát; žádný člověk se neodvážil vyjít ven, loď odplula.",
            "cp1250",
        ),
        (
            "Sabah denize gittik, ama eski saat üç kez çaldı; çocuklar ağlıyordu, şehirde değişen bir şey yoktu.",
            "cp1254",
        ),
        ("Schöne Grüße aus Köln: die Straße ist frei, wir fahren später über die Brücke nach Süden, tschüß.", "cp1252"),
    ],
)
def test_letters_that_one_european_language_has_together_show_the_encoding(tmp_path, words, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("".join(f"Ann Lee: {words}\n\nBob Reece: {words}\n\n" for _ in range(3)).encode(encoding))
    transcript = read_transcript(path)
    assert transcript.turns[0].text == words.strip() and transcript.encoding == encoding


def test_letters_that_no_european_language_has_together_are_another_encoding(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Ann Lee: the ðýþ bell ãõñ rang øå at û three ß ë and nobody was there\n".encode("cp1252") * 3)
    with pytest.raises(TranscriptError, match="not UTF-8"):
        read_transcript(path)


def test_sentences_before_the_first_time_are_speech(read):
    lines = [
        "So it was, and nobody was there at all.",
        "Then the winter came to us.",
        "And who was it that rang the bell?",
    ] * 4
    text = "The bell\n\nYou are listening to the bell, and this is a show.\n\n"
    text += "".join(f"[00:0{n // 60}:{n % 60:02}]\n{line} It is {chr(97 + n) * 3}.\n\n" for n, line in enumerate(lines))
    transcript = read(text)
    assert said(transcript)[0][1].startswith("You are listening to the bell, and this is a show. So it was")
    assert transcript.episode == "The bell"


def test_what_follows_a_summary_of_a_page_is_its_transcript(read):
    said_there = "".join(
        f"<p><strong>(00:0{n}:00)</strong></p><p>So it was on day {n}, as we know.</p>" for n in range(9)
    )
    page = f"<p>A hearing on bells. It was long.</p><details><summary>▸ Full Transcript</summary>{said_there}</details>"
    turns = said(read(f"<!DOCTYPE html><html><body><h1>Bells</h1>{page}</body></html>", "a.html"))
    assert turns[0][1].startswith("So it was on day 0")


@pytest.mark.parametrize("bold", ["**{}:**", "__{}:__", "**{}: **"])
@pytest.mark.parametrize("num_turns", [3, 8])
def test_bold_names_within_one_line_of_markdown_start_turns(read, bold, num_turns):
    turns = [(("Ann Lee", "Bob")[n % 2], f"{LINES[n % len(LINES)]}") for n in range(num_turns)]
    transcript = read("# Bells\n\n" + " ".join(f"{bold.format(name)} {line}" for name, line in turns), "a.md")
    assert said(transcript) == turns and not transcript.is_doubtful


def test_a_bold_word_with_a_colon_within_a_turn_starts_none(read):
    lines = [f"**{name}:** {line}" for name, line in EXPECTED]
    transcript = read("\n\n".join([lines[0], f"{lines[1]} **Note:** the bell rang.", *lines[2:]]), "a.md")
    assert transcript.turns[1].text.endswith("Note: the bell rang.") and transcript.speakers == tuple(dict(EXPECTED))

"""Turns that are seen from what recurs: labels of programs, lines above every turn, names and roles on lines of their own."""

import pytest
from read_texts import said
from test_reading_signals import EXPECTED, LINES

from midthought.memory.turns import UNKNOWN_SPEAKER

CODES = ["SPEAKER_00", "SPEAKER_00", "SPEAKER_00", "SPEAKER_01", "SPEAKER_01", "SPEAKER_01", "UNKNOWN", "SPEAKER_00"]


@pytest.mark.parametrize("time", ["[0:00:0{}.835000 - 0:00:0{}.935000] ", "(00:0{}) "])
def test_labels_of_a_diarization_program_need_no_colon(read, time):
    lines = [f"{time.format(n, n)}{code} -  {text}\n" for n, (code, text) in enumerate(zip(CODES, LINES, strict=True))]
    transcript = read("".join(lines))
    assert said(transcript) == list(zip(CODES, LINES, strict=True)) and not transcript.is_doubtful


@pytest.mark.parametrize("label", ["[{}] ", "{}\n", "{}| "])
def test_labels_of_a_diarization_program_without_times(read, label):
    codes = [f"SPEAKER_0{n // 2 % 2}" for n in range(4)]
    lines = [f"{label.format(code)}{text}\n" for code, text in zip(codes, LINES[:4], strict=True)]
    assert said(read("".join(lines))) == list(zip(codes, LINES[:4], strict=True))


@pytest.mark.parametrize("turn", ["photo of user\n{name}\n00:0{n}\n{text}\n", "{name}\n00:0{n}\ncopy link\n{text}\n"])
def test_the_same_line_at_every_turn_is_no_speech(read, turn):
    turns = [turn.format(name=name, n=n, text=text) for n, (name, text) in enumerate(EXPECTED)]
    transcript = read("".join(turns).removeprefix("photo of user\n"))
    assert said(transcript) == EXPECTED and not transcript.is_doubtful
    assert {each.reason for each in transcript.skipped} == {"recurs at every turn"}


def test_a_colon_of_a_recognizer_is_no_doubt_if_all_turns_have_times(read):
    texts = [f"{text}\nA: yeah." if n == 3 else text for n, text in enumerate(LINES)]
    lines = [f"{name}\n00:0{n}:00\n{text}\n" for n, ((name, _), text) in enumerate(zip(EXPECTED, texts, strict=True))]
    assert not read("".join(lines)).is_doubtful


def test_a_list_that_somebody_reads_out_has_no_speakers(read):
    codes = ["SPEAKER_01", "SPEAKER_00"] * 2
    texts = [LINES[0], f"One: the bell. {LINES[1]}\n\nTwo: The clock of the hall. {LINES[3]}", *LINES[4:6]]
    transcript = read("".join(f"{code}: {text}\n" for code, text in zip(codes, texts, strict=True)))
    assert transcript.speakers == ("SPEAKER_01", "SPEAKER_00") and not transcript.is_doubtful


def test_a_sentence_with_a_time_and_a_colon_continues_the_turn(read):
    lines = [f"[00:0{n}] {name}: {text}\n\n" for n, (name, text) in enumerate(EXPECTED)]
    lines.insert(3, "[00:02] For example: the tide clock, or the boat.\n\n")
    transcript = read("".join(lines))
    assert transcript.speakers == ("Ann Lee", "Bob Reece") and not transcript.is_doubtful
    assert transcript.turns[2].text.endswith("For example: the tide clock, or the boat.")


@pytest.mark.parametrize("title", ["회의록", "会议记录", "議事録"])
def test_a_title_of_minutes_ends_the_header(read, title):
    top = f"안건: 종과 시계에 관한 전략 회의\n\n참석자:\n김하나 (AL): 부사장\n이두리 (BR): 분석가\n\n\n{title}:\n"
    turns = "".join(f"{code}: {text}\n\n" for code, text in zip(["AL", "BR"] * 4, LINES, strict=True))
    transcript = read(top + turns)
    assert transcript.speakers == ("AL", "BR") and not transcript.is_doubtful


def test_a_line_says_that_it_is_a_transcript(read):
    spoken = " ".join(LINES[:2]).lower()
    transcript = read(f"Transcript: {spoken}")
    assert said(transcript) == [(UNKNOWN_SPEAKER, spoken)] and not transcript.is_doubtful


def test_what_follows_the_end_of_the_episode_is_no_speech(read):
    turns = "".join(f"**{name}:** {text}\n\n" for name, text in EXPECTED)
    notes = "## Production Notes\n\n### Voices:\n- **Voice of Ann**: soft\n- **Pacing**: slow, with pauses\n"
    transcript = read(f"{turns}---\n\n**[End of Episode]**\n\n{notes}", "a.md")
    assert said(transcript) == EXPECTED and not transcript.is_doubtful


@pytest.mark.parametrize(
    "notes",
    [
        "Outline of the talk\n\n1. The bell\n   Ask about it.\n\n2. The clock\n   Ask about it.\n\n3. The boat\n",
        "Conclusion of the talk:\nWe learned much.\n\nOpen questions:\n- the bell\n\nDocuments to bring:\n",
    ],
)
def test_a_document_after_the_last_turn_is_no_speech(read, notes):
    turns = "".join(f"{name}: {text}\n\n" for name, text in EXPECTED)
    transcript = read(turns + notes)
    assert said(transcript) == EXPECTED and not transcript.is_doubtful


@pytest.mark.parametrize("number", ["{}、", "{}.- ", "({}) "])
def test_a_questionnaire_is_doubted(read, number):
    lines = [f"{number.format(n)}{text}" for n, text in enumerate(LINES, 1)]
    assert read("\n\n".join(["About bells and clocks", *lines])).is_doubtful


def test_notes_with_times_are_doubted(read):
    notes = "".join(
        f"{n}:05 - {n}:20 – \n\tBell {n} – a sign to stop for all of them\n\tBoat {n} – show the palm of a hand\n"
        for n in range(1, 9)
    )
    assert read(
        f"Talk 1\n\nSigns for the boat:\n\n{notes}\nNumber of bells:\nFour or five, as they are heavy.\n"
    ).is_doubtful


def test_a_sound_between_and_within_lines_is_no_speaker(read):
    lines = [
        f"[Musik] {text}" if n % 3 == 0 else text.replace(", ", " [Musik] ") for n, text in enumerate(LINES[2:] * 4)
    ]
    assert not read("\n\n".join(f"{line} {n}" for n, line in enumerate(lines))).is_doubtful


def test_headings_of_a_text_without_blanks(read):
    line = "大家好第{}次我想跟大家分享一个我最近做的小产品它解决的是一个非常具体的问题我们一起来看一看。\n"
    parts = [f"## 第{part}部分\n\n{''.join(map(line.format, range(12 * part, 12 * part + 12)))}" for part in range(6)]
    assert read("\n".join(parts), "a.md").doubts == ()


def test_printed_names_with_titles(read):
    names = [
        "Operator",
        "Ann M. Lee",
        "Bob Reece",
        "Operator",
        "Carl Ruoff",
        "Bob Reece",
        "Ann M. Lee",
        "Operator",
        "Dan Poe",
        "Ann M. Lee",
        "Operator",
        "Bob Reece",
    ]
    titles = {
        "Ann M. Lee": "President, CEO & Director",
        "Bob Reece": "Chief Financial Officer",
        "Carl Ruoff": "Bell Works & Associates, Inc., Research Division",
        "Dan Poe": "Tide Bank",
    }
    listed = (
        "Call Participants\nEXECUTIVES\nAnn M. Lee\nPresident, CEO & Director\nBob Reece\nChief Financial Officer\nANALYSTS\n"
        "Carl Ruoff\nBell Works & Associates,\nInc., Research Division\nDan Poe\nTide Bank\nPresentation\n"
    )
    texts = [f"{LINES[n % 8]}\nThat was in the week {n}." for n in range(len(names))]
    turns = [
        f"{name}\n{titles[name]}\n{text}\n" if name in titles else f"{name}\n{text}\n"
        for name, text in zip(names, texts, strict=True)
    ]
    transcript = read(listed + "".join(turns))
    assert said(transcript) == [(name, text.replace("\n", " ")) for name, text in zip(names, texts, strict=True)]
    assert not transcript.is_doubtful


def test_members_of_a_parliament_with_places_and_offices(read):
    labels = [
        "Ann Lee (Harbour and Bell) (Ind)",
        "The Secretary of State for Tides, Bells and Boats (Bob Reece)",
        "Ann Lee",
        "Bob Reece",
    ]
    labels += ["Mr Carl Ruoff (Tide) (Con)", "Bob Reece", "Mr Speaker", "Bob Reece"]
    names = [
        "Ann Lee",
        "Bob Reece",
        "Ann Lee",
        "Bob Reece",
        "Mr Carl Ruoff (Tide) (Con)",
        "Bob Reece",
        "Mr Speaker",
        "Bob Reece",
    ]
    turns = "".join(f"{label}\n\n{text}\n\n" for label, text in zip(labels, LINES, strict=True))
    transcript = read(turns + "Contains information licensed under the Open Bell Licence v3.0.\n")
    assert said(transcript) == list(zip(names, LINES, strict=True)) and not transcript.is_doubtful
    assert transcript.header == (("speaker", labels[0]), ("speaker", labels[1]))


def test_names_with_colons_between_times_and_words_below_a_title(read):
    about = "".join(
        f"This talk is about the bell {n} of the harbour, and about those who rang it then.\n" for n in range(30)
    )
    turns = "".join(
        f"00:0{n}\n{name}:\n{text}\n" for n, (name, text) in enumerate([*EXPECTED[:2], ("Ann Lee", LINES[2])])
    )
    transcript = read(f"Part IV: the bell\n{about}Transcript\nDownload PDF\n{turns}")
    assert said(transcript) == [*EXPECTED[:2], ("Ann Lee", LINES[2])] and transcript.turns[1].time == "00:00:01"
    assert not any("before the first speaker have none" in doubt for doubt in transcript.doubts)


def test_paragraphs_with_dashes_are_doubted_on_pages_of_lines(read):
    lines = "".join(f"—{text[:20]}\n{text[20:-1]}\nand so it was.\n" for text in LINES)
    assert any("start with a dash" in doubt for doubt in read(lines).doubts)


def test_a_remark_above_the_first_time_is_no_speech(read):
    turns = "".join(f"00:0{n}\n{name}:\n{text}\n" for n, (name, text) in enumerate(EXPECTED))
    transcript = read(f"The news\nRemark: the words of this page are those of the talk.\n{turns}")
    assert said(transcript) == EXPECTED and not transcript.is_doubtful


@pytest.mark.parametrize("name", ["Seven", "Two", "Eins"])
def test_a_speaker_named_like_a_number_is_a_speaker(read, name):
    said = [f"We left the harbour at {n} and the bell rang." for n in range(12)]
    speakers = ["Janeway", name, "Tuvok"] * 4
    transcript = read("\n".join(f"{who}: {text}" for who, text in zip(speakers, said, strict=True)))
    assert [(turn.speaker, turn.text) for turn in transcript.turns] == list(zip(speakers, said, strict=True))


def test_a_name_in_brackets_within_one_sentence_is_still_a_speaker(read):
    said = [f"We left the harbour at {n} and so on" for n in range(12)]
    said[4] = "I told [Bob] that and so on"
    transcript = read("\n".join(f"[{('Ann', 'Bob')[n % 2]}] {text}" for n, text in enumerate(said)))
    assert [turn.speaker for turn in transcript.turns] == ["Ann", "Bob"] * 6


def test_words_that_recur_in_the_turns_are_said(read):
    transcript = read("\n\n".join(f"{('Ann', 'Bob')[n % 2]}: We are at mile {n}.\nOver" for n in range(12)))
    assert {turn.text.split()[-1] for turn in transcript.turns} == {"Over"}


def test_a_label_with_a_colon_among_printed_names_with_titles(read):
    titles = {"Ann M. Lee": "Chief Financial Officer, Bell Works A", "Bob Reece": "Analyst, Clock Securities LLC Q"}
    names = ["Operator", "Ann M. Lee", "Bob Reece", "Ann M. Lee", "Operator", "Bob Reece", "Ann M. Lee", "Operator"] * 2
    turns = [(name, f"{LINES[n % 8]} That was in the week {n}.") for n, name in enumerate(names)]
    parts = [f"{who}\n{titles[who]}\n{words}\n" if who in titles else f"{who}: {words}\n" for who, words in turns]
    transcript = read(f"{'.' * 60}\n".join(["MANAGEMENT DISCUSSION SECTION\n", *parts]))
    assert said(transcript) == turns and not transcript.is_doubtful

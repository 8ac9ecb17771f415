"""Shapes of real transcripts: labels glued to words, in capitals, bold or numbered; headings; lines that are no speech."""

import json

import pytest
from read_texts import said
from test_reading_signals import EXPECTED, LINES, NAMES

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.notations import notation_of

PAIRS = list(zip((["Ann Lee", "Bob"] * 4)[: len(LINES)], LINES, strict=True))
"""Two speakers in turn."""


def test_labels_glued_to_the_end_of_a_sentence_start_turns(read):
    text = "".join(f"{name}:\N{NO-BREAK SPACE}{words}" for name, words in PAIRS)
    assert said(read(text)) == PAIRS


def test_labels_with_times_within_one_long_line_start_turns(read):
    words = [f"{text} {' '.join(f'{word}s, not {word}' for word in text.split())}" for text in LINES]
    text = "".join(f"{name} 0:{n:02d} {said}" for n, ((name, _), said) in enumerate(zip(PAIRS, words, strict=True), 10))
    transcript = read(text)
    assert said(transcript) == [(name, said) for (name, _), said in zip(PAIRS, words, strict=True)]
    assert transcript.turns[1].time == "00:00:11"


def test_bold_names_without_a_sign_start_turns(read):
    text = "".join(f"**{name}** {words}\n\n" for name, words in PAIRS)
    assert said(read(text, "a.md")) == PAIRS


def test_headings_that_recur_are_names_in_lower_case_too(read):
    names = ["ann de-lee", "archived recording (bob)"]
    text = "".join(f"## {names[n % 2]}\n\n{words}\n\n" for n, words in enumerate(LINES))
    assert read(text, "a.md").speakers == tuple(names)


@pytest.mark.parametrize("form", ["Question {n}) {q}\nAnswer {n}){a}\n", "Q{n}) {q}\nA{n}) {a}\n"])
def test_numbered_questions_and_answers(read, form):
    text = "".join(form.format(n=n // 2 + 1, q=LINES[n], a=LINES[n + 1]) for n in range(0, len(LINES) - 1, 2))
    assert [turn.text for turn in read(text).turns] == LINES[: len(LINES) // 2 * 2]
    assert len(read(text).speakers) == 2


def test_a_role_alone_on_its_line_starts_a_turn_without_a_colon(read):
    text = "".join(f"Speaker {n % 2 + 1}:\n{words}\n" for n, words in enumerate(LINES))
    last = f"Speaker {len(LINES) % 2 + 1}\nSo it is."
    assert said(read(text + last))[-1] == (f"Speaker {len(LINES) % 2 + 1}", "So it is.")


def test_times_between_number_signs_are_times(read):
    text = "".join(f"{'IB'[n % 2]}: {words} #00:01:{n:02d}-{n % 10}#\n\n" for n, words in enumerate(LINES))
    assert said(read(text)) == [("IB"[n % 2], words) for n, words in enumerate(LINES)]


def test_a_host_line_with_the_speakers_names_is_a_field(read):
    text = "今日播客\n主持人：递归、大师\n————\n" + "".join(
        f"{'递归' if n % 2 else '大师'}：今天我们聊聊钟声。\n" for n in range(6)
    )
    transcript = read(text)
    assert set(transcript.speakers) == {"递归", "大师"} and ("主持人", "递归、大师") in transcript.header


def test_a_profile_before_the_first_turn_is_a_header(read):
    profile = "Interview 4\n\nGender: Male\n\nAge: 24\n\nNationality: French\n\n"
    transcript = read(profile + "".join(f"{name}: {words}\n\n" for name, words in PAIRS))
    assert said(transcript) == PAIRS and ("Age", "24") in transcript.header


def test_a_first_line_about_a_speaker_is_reported(read):
    first = "Interviewee: Ann Lee, 24, a baker, enjoys the bells of the harbor.\n"
    assert read(first + "".join(f"{name}: {words}\n" for name, words in PAIRS)).is_doubtful


def test_a_heading_in_capitals_is_no_speech(read):
    lines = [f"{name}: {words}\n" for name, words in PAIRS]
    transcript = read("".join([*lines[:2], "REPORT OF THE BELL COMMITTEE\nThe report was read.\n", *lines[2:]]))
    assert said(transcript) == [PAIRS[0], ("Bob", f"{LINES[1]} The report was read."), *PAIRS[2:]]
    assert [(each.text, each.reason) for each in transcript.skipped] == [
        ("REPORT OF THE BELL COMMITTEE", "heading in capitals")
    ]


def test_text_after_a_last_heading_in_capitals_is_reported(read):
    lines = [f"{name}: {words}\n" for name, words in PAIRS]
    article = "THE BELL OF THE HARBOR\nIn this talk two people spoke of the bell, the tide and the harbor.\n"
    assert read("".join(lines) + article).is_doubtful


def test_words_left_out_as_repetitions_are_reported(read):
    text = " ".join(LINES) + " and so it rang" * 20 + " " + " ".join(LINES)
    transcript = read(text)
    assert transcript.num_repeats and transcript.is_doubtful and "repetitions" in transcript.doubts[-1]


def test_a_short_page_with_headings_is_reported(read):
    page = f"# The bells\n\n{LINES[0]}\n\n## Errors\n\n{LINES[1]} {LINES[2]}\n\n## Help\n\n" + " ".join(LINES)
    assert read(page, "a.md").is_doubtful


def test_sentences_after_a_blank_line_within_a_cue_belong_to_it(read):
    cues = [
        f"{n + 1}\n00:00:{n:02d},000 --> 00:00:{n:02d},900\n{words}\n\nAnd {words}\n\n" for n, words in enumerate(LINES)
    ]
    transcript = read("".join(cues), "a.srt")
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(f"{words} And {words}" for words in LINES)


def test_a_list_named_speakers_may_have_the_turns(read):
    entries = [{"name": name, "id": NAMES.index(name) if name in NAMES else 9, "text": text} for name, text in EXPECTED]
    assert said(read(json.dumps({"speakers": entries, "case": "07-21"}), "a.json")) == EXPECTED


def test_entries_with_spk_and_msg(read):
    entries = [{"start_at": 100 * n, "spk": n % 2, "msg": text} for n, text in enumerate(LINES)]
    transcript = read(json.dumps({"utterances": entries}), "a.json")
    assert len(transcript.speakers) == 2 and [turn.text for turn in transcript.turns] == LINES


def test_the_words_of_a_tier_within_another_tier_are_read_once(read):
    def tier(attributes: str, texts: list[str]) -> str:
        found = "".join(
            f'<ALIGNABLE_ANNOTATION TIME_SLOT_REF1="ts{n}"><ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
            for n, text in enumerate(texts)
        )
        return f"<TIER {attributes}>{found}</TIER>"

    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{1000 * n}"/>' for n in range(40))
    text = tier('PARTICIPANT="Ann" TIER_ID="Ann-text"', LINES)
    words = tier('PARTICIPANT="Ann" TIER_ID="Ann-words" PARENT_REF="Ann-text"', " ".join(LINES).split()[:40])
    transcript = read(
        f'<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT>{slots}{text}{words}</ANNOTATION_DOCUMENT>', "a.eaf"
    )
    assert said(transcript) == [("Ann", " ".join(LINES))] and not transcript.is_doubtful


def test_names_with_titles_after_two_hyphens(read):
    top = "Bell Q3 call\n\nPrepared Remarks\n\nCall Participants\n\nPrepared Remarks:\n\n"
    titles = {"Ann Lee": "Ann Lee--Chief Executive Officer", "Bob": "Operator"}
    text = "".join(f"{titles[name]}\n\n{words}\n\nAnd so on, as before.\n\n" for name, words in PAIRS)
    transcript = read(f"{top}{text}Duration: 0 minutes\n\n")
    assert transcript.speakers == ("Ann Lee", "Operator") and transcript.turns[0].text.startswith(LINES[0])


def test_short_sentences_that_recur_are_no_names(read):
    short = ["Mm-hm.", "Okay.", "Sure."]
    text = "".join(
        f"{words} So it was, and we went on from there.\n\n{short[n % 3]}\n\n" for n, words in enumerate(LINES * 2)
    )
    transcript = read(text)
    assert not transcript.speakers and not [doubt for doubt in transcript.doubts if "start alike" in doubt]


@pytest.mark.parametrize("label", ["A RECORDED VOTE", "Item {n} ANN LEE", "Data-low-quality-fix-of-bells"])
def test_labels_that_are_no_names_are_reported(read, label):
    names = ["BOB REECE", label]
    text = "".join(f"{names[n % 2].format(n=n)}: {words}\n\n" for n, words in enumerate(LINES * 2))
    assert read(text).is_doubtful


def test_sections_by_letters_are_no_answers(read):
    text = "".join(f"{letter}. {words}\n" for letter, words in zip("ABCDAQAB", LINES, strict=True))
    assert read(text).is_doubtful


def test_a_list_of_questions_is_reported(read):
    text = "".join(f"How would you {words[3:-1].lower()}?\n\n" for words in LINES)
    assert read(text).is_doubtful


def test_a_label_of_any_shape_where_nearly_every_cue_has_one(read):
    names = ["Ann Lee", "Bob"] * 10
    cues = [*zip(names, LINES * 3, strict=False), ("shruthi", "Good evening."), ("Ann Lee", "Good.")]
    times = "00:{:02d}:00.000 --> 00:{:02d}:09.000\n{}: {}\n\n"
    transcript = read("WEBVTT\n\n" + "".join(times.format(n, n, *cue) for n, cue in enumerate(cues)), "a.vtt")
    assert said(transcript)[-2:] == [("shruthi", "Good evening."), ("Ann Lee", "Good.")]


def test_people_who_leave_a_meeting_say_nothing(read):
    text = "".join(f"{name}   0:{n:02d}\n{words}\n\n" for n, (name, words) in enumerate(EXPECTED))
    assert said(read(f"{text}Ann Lee left the meeting\n\nBob Reece stopped transcription\n")) == EXPECTED


def test_headings_of_a_bold_name_and_a_linked_time_in_brackets(read):
    text = "".join(
        f"##### **{name}** [[00:00:{n:02d}](https://bell.example/?t={n})]\n{words}\n\n"
        for n, (name, words) in enumerate(PAIRS)
    )
    transcript = read(f"# A meeting\n\n### Transcript\n{text}", "a.md")
    assert said(transcript) == PAIRS and transcript.turns[2].time == "00:00:02"


def test_a_label_with_its_start_and_end_alone_on_a_line(read):
    labels = [f"SPEAKER {1 + (n > 1)}" for n in range(len(LINES))]
    text = "".join(
        f"{label} 0:00:{n:02d} 0:00:{n + 1:02d}\n{words}\n"
        for n, (label, words) in enumerate(zip(labels, LINES, strict=True))
    )
    transcript = read(text)
    assert said(transcript) == list(zip(labels, LINES, strict=True))
    assert transcript.turns[1].time == "00:00:01"


def test_bold_names_with_a_full_stop_start_turns(read):
    text = "".join(f"**{name}.** {words}\n\n" for name, words in PAIRS[:5])
    transcript = read(f"# The bell\n\n1 May: the clock, the tide.\n\n- Ann Lee\n- Bob\n\n{text}## The end\n", "a.md")
    assert said(transcript) == PAIRS[:5] and not transcript.is_doubtful


def test_short_lines_that_are_words_of_a_text_without_blanks_are_no_names():
    others = ["しけなかつてのかと", "これはリッチーのうちです", "でもああそうだよね", "ほんとうにありがとうね"]
    lines = [
        line
        for n in range(60)
        for line in (
            [f"{others[n % 4]}{chr(0x3041 + n)}"] + [("ああ", "リッチー", "ありがとう")[n // 3 % 3]] * (n % 3 == 0)
        )
    ]
    notation = notation_of([Row(number, line, True) for number, line in enumerate(lines)])
    assert notation and notation.num_names == 0


@pytest.mark.parametrize("sound", ["музыка", "Música", "拍手"])
def test_a_sound_on_lines_of_its_own_is_no_speaker(read, sound):
    lines = [f"{words.replace(':', ',').removesuffix('.')} {chr(97 + n)}x." for n, words in enumerate(LINES * 3)]
    text = "".join(f"[{sound}]\n{line}\n" if n % 3 == 0 else f"{line}\n" for n, line in enumerate(lines))
    assert not read(text).is_doubtful


def test_a_page_that_spells_its_times_and_has_chapters(read):
    words = [f"{line.replace(':', ',').removesuffix('.').lower()} {chr(97 + n)}x" for n, line in enumerate(LINES * 5)]
    lines = [f"0:{n:02d}{n} secondes{line}\n" for n, line in enumerate(words, 10)]
    chapters = [f"Chapitre {n} : La cloche et le port, en été\n" for n in (1, 2)]
    transcript = read("".join([chapters[0], *lines[:20], chapters[1], *lines[20:]]), "a.md")
    assert not transcript.is_doubtful and transcript.turns[0].text.startswith("so the bell rang")

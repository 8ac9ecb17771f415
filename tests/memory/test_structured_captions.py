"""Captions: labels that are none, lines after a blank line, files without times."""

import pytest
from read_texts import said

from midthought.memory.formats.line_candidates import Row
from midthought.memory.formats.line_tokens import tokens_of

SENTENCES = [
    "So the bell rang at three, and nobody was there", "I think that is right: the clock was fast",
    "We had no idea, and what did you do", "It cost five dollars, and took two days", "That is the tide clock in the hall",
    "Nobody went out for three weeks after that", "Then the first boat left, and all of us waved", "And I still think of it",
]  # fmt: skip


def srt(lines, seconds=4):
    return "".join(
        f"{n + 1}\n00:{n * seconds // 60:02d}:{n * seconds % 60:02d},000 --> "
        f"00:{(n + 1) * seconds // 60:02d}:{(n + 1) * seconds % 60:02d},000\n{line}\n\n"
        for n, line in enumerate(lines)
    )


@pytest.mark.parametrize("text", ["এখানে দুটি জিনিস", "என் பெயர் இது", "ကျွန်တော် နာမည်", "qu’il l’a vu", "שָׁלוֹם לָכֶם"])
def test_signs_that_combine_with_a_letter_are_parts_of_its_word(text):
    words = [text[token.start : token.end] for token in tokens_of(Row(0, text, False)) if token.is_word]
    assert words == text.split()


def test_words_before_a_comma_of_japanese_are_no_labels(read):
    starts, ends = (
        ["そして", "しかし", "また", "例えば"],
        ["時計を見ました", "船に乗りました", "鐘が鳴りました", "泳ぎました"],
    )
    others = ["最後に", "朝", "夜", "海では", "駅で", "その後", "実は", "今日"]
    lines = [
        f"{starts[n // 2 % 4] if n % 2 else others[n // 2 % 8] + str(n)}、私たちは{n}回{ends[n % 4]}。"
        for n in range(60)
    ]
    transcript = read(srt(lines), "a.srt")
    assert transcript.speakers == () and not transcript.is_doubtful
    assert transcript.turns[0].text.startswith("最後に0、私たちは0回時計を見ました。 そして、")


def test_captions_of_one_word_each_are_no_names(read):
    words = " ".join(SENTENCES * 4).split()
    transcript = read(srt([word.capitalize() if n % 7 == 0 else word for n, word in enumerate(words)], 1), "a.srt")
    assert not transcript.is_doubtful and transcript.num_words == len(words)


def test_short_lines_after_a_blank_line_within_a_cue_are_words(read):
    text = "".join(
        f"0:00:0{n}.000,0:00:0{n + 1}.000\n{line}\n\xa0\nof bells {n}\n\n" for n, line in enumerate(SENTENCES)
    )
    transcript = read(text, "a.sbv")
    assert transcript.num_words == sum(len(line.split()) + 3 for line in SENTENCES) and not transcript.skipped


def test_a_caption_file_without_times_is_read_as_text(read):
    transcript = read("".join(f"{n + 1}\n  \n{line}.\n\n" for n, line in enumerate(SENTENCES)), "a.srt")
    assert transcript.turns[0].text == " ".join(f"{line}." for line in SENTENCES)
    assert "no line has the times of a cue" in transcript.doubts[0]


def test_the_few_cues_of_a_short_meeting_in_webex_have_speakers(read):
    cues = "".join(
        f'{n + 1} "{("Ann Lee", "Bob")[n % 2]}" (38912514{n % 2})\n00:0{n}:00.000 --> 00:0{n}:09.000\n{line}.\n\n'
        for n, line in enumerate(SENTENCES[:3])
    )
    transcript = read(f"WEBVTT\n\n{cues}", "a.vtt")
    assert said(transcript) == [(("Ann Lee", "Bob")[n % 2], f"{line}.") for n, line in enumerate(SENTENCES[:3])]
    assert not transcript.is_doubtful and not transcript.skipped


def test_times_in_seconds_without_a_unit_in_ttml(read):
    cues = "".join(
        f'<p begin="{n * 5}.25" end="{n * 5 + 4}" ttm:agent="SPEAKER_{n}"><span podcasts:unit="sentence">'
        + "".join(f'<span begin="{n * 5}.25" podcasts:unit="word">{word}</span>' for word in line.split())
        + "</span></p>"
        for n, line in enumerate(SENTENCES[:3])
    )
    transcript = read(f'<tt xmlns="http://www.w3.org/ns/ttml"><body>{cues}</body></tt>', "a.ttml")
    assert [turn.time for turn in transcript.turns] == ["00:00:00", "00:00:05", "00:00:10"]
    assert said(transcript) == [(f"SPEAKER_{n}", line) for n, line in enumerate(SENTENCES[:3])]


def test_subviewer(read):
    head = "[INFORMATION]\n[TITLE]The bell\n[DELAY]0\n[CD TRACK]0\n[END INFORMATION]\n[SUBTITLE]\n[COLF]&HFFFFFF,[STYLE]bd\n"
    transcript = read(head + "00:00:02.44,00:00:05.38\nThe bell[br]rang.\n\n00:00:07.00,00:00:08.00\nTwice.\n", "a.sub")
    assert said(transcript) == [("Unknown Speaker", "The bell rang. Twice.")] and transcript.turns[0].time == "00:00:02"
    assert dict(transcript.header)["TITLE"] == "The bell" and not transcript.is_doubtful


def test_a_client_is_a_speaker(read):
    transcript = read(srt([f"{('Coach', 'Client')[n % 2]}: {line}." for n, line in enumerate(SENTENCES[:4])]), "a.srt")
    assert said(transcript) == [(("Coach", "Client")[n % 2], f"{line}.") for n, line in enumerate(SENTENCES[:4])]
    assert not transcript.is_doubtful


def test_a_word_with_a_colon_within_a_sentence_of_captions_is_no_label(read):
    talk = []
    for n, line in enumerate(SENTENCES * 2):
        words = f"{line}, as far as anybody could tell me {n}.".split()
        talk += [f"{('Ann', 'Bob')[n % 2]}: {' '.join(words[:4])}", " ".join(words[4:9]), " ".join(words[9:])]
    talk[4:4] = ["but this was the second thought about the old", "Bell: it rang at the wrong time of the day"]
    transcript = read(srt(talk, 2), "a.srt")
    assert set(transcript.speakers) == {"Ann", "Bob"}
    assert "the old Bell: it rang" in transcript.turns[1].text


def test_labels_of_captions_that_seldom_end_sentences_are_speakers(read):
    lines = [f"{('Ann', 'Bob')[n % 2]}: {line}{'?' if n % 6 == 1 else ''}" for n, line in enumerate(SENTENCES * 3)]
    transcript = read(srt(lines), "a.srt")
    assert [turn.speaker for turn in transcript.turns] == ["Ann", "Bob"] * 12


def test_times_in_seconds_with_one_decimal(read):
    words = ["So", "the", "bell", "rang", "at", "three", "and", "nobody", "was", "there"]
    text = "".join(f"{n}\n{n}.25 --> {n + 1}.{(5, 25)[n % 2]}\n{word}\n\n" for n, word in enumerate(words))
    assert " ".join(turn.text for turn in read(text, "a.srt").turns) == " ".join(words)

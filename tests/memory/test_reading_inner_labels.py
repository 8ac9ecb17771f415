"""Labels within lines, of two people at once, without a colon or of sounds; a first block of fields below a title."""

import pytest
from read_texts import said
from test_reading_evidence import TEXTS

TURNS = [(("Ann", "Bob")[n % 2], text) for n, text in enumerate(TEXTS * 2)]


CHAPTERS = [
    "Introduction",
    "Why the Bell Rang at Three",
    "What makes a clock different from others",
    "A Tide of Many Boats",
    "what to expect from a boat",
    "[End]",
    "Wrapping Up",
]


def lines(turns, sep=": ", end="\n") -> str:
    return "".join(f"{name}{sep}{text}{end}" for name, text in turns)


def test_labels_of_one_letter_within_a_line_are_turns(read):
    turns = [("EL"[n % 2], text) for n, text in enumerate(TEXTS * 2)]
    text = (
        lines(turns)
        + "E: So you were [L: Hum. E: Yes.] there and [L: No]L: Well, I was E:[laughs] and then L: Not after that.\n"
    )
    assert said(read(text)) == [
        *turns,
        ("E", "So you were [L: Hum. E: Yes.] there and [L: No]"),
        ("L", "Well, I was"),
        ("E", "[laughs] and then"),
        ("L", "Not after that."),
    ]


def test_two_codes_at_once_are_a_label(read):
    turns = [("EL"[n % 2], text) for n, text in enumerate(TEXTS * 2)]
    turns[7:7] = [("E et L", "Ooooh")]
    assert said(read(lines(turns))) == turns


@pytest.mark.parametrize("first", ["ANN LEE", "Ann LEE"])
def test_a_short_last_name_is_no_code(read, first):
    turns = [
        ("BOB REECE", "Hello, all."),
        (first, "Hello."),
        *((("LEE", "BELL")[n % 2], t) for n, t in enumerate(TEXTS)),
    ]
    assert said(read(lines(turns, end="\n\n"))) == turns


def test_a_word_in_capitals_that_starts_no_lines_is_no_label(read):
    turns = [("EL"[n % 2], text) for n, text in enumerate(TEXTS * 2)]
    turns.append(("E", "We looked at point P: the others were gone."))
    assert said(read(lines(turns))) == turns


def test_labels_in_capitals_without_a_colon(read):
    turns = [(("BUSHELL", "WALKER")[n % 2], text) for n, text in enumerate(TEXTS * 3)]
    text = lines(turns[:-2]) + f"BUSHELL {turns[-2][1]} WALKER {turns[-1][1]}\n"
    assert said(read(text)) == turns


@pytest.mark.parametrize("said_here", ["They shouted: WALKER. Nobody came.", "The sign had WALKER Street on it."])
def test_a_name_in_capitals_within_a_sentence_is_no_label(read, said_here):
    turns = [(("BUSHELL", "WALKER")[n % 2], text) for n, text in enumerate(TEXTS * 3)]
    turns[3] = (turns[3][0], said_here)
    assert said(read(lines(turns))) == turns


@pytest.mark.parametrize("label", ["Ann and Bob", "Bob dan Ann", "Ann & Bob", "Ann, Bob"])
def test_two_speakers_at_once_are_a_label(read, label):
    turns = [*TURNS[:6], (label, "Ooooh"), *TURNS[6:]]
    assert said(read(lines(turns))) == turns


def test_sounds_that_have_a_label_are_no_speech(read):
    text = "".join(
        f"{name}: {words}\n" + "SFX:(all laughing)\n" * (n % 5 == 2) for n, (name, words) in enumerate(TURNS)
    )
    transcript = read(text)
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_a_first_block_of_fields_below_a_title(read):
    text = (
        "Interview with P2\nDevice: a clock (with a bell)\nSetting: Has had the clock for two weeks. At home.\n\n"
        + "\n\n".join(lines(TURNS[n : n + 2]).strip() for n in range(0, len(TURNS), 2))
    )
    transcript = read(text)
    assert said(transcript) == TURNS and not transcript.is_doubtful
    assert ("Device", "a clock (with a bell)") in transcript.header


def test_first_turns_below_a_title_are_no_fields(read):
    turns = [("Cid", "Good morning. Who is here?"), ("Dee", "I am. And Ann and Bob.")]
    text = "A talk\n" + lines(turns) + "\n" + lines(TURNS)
    assert said(read(text)) == [*turns, *TURNS]


def test_a_role_with_two_remarks_is_a_label(read):
    turns = [(("ANALYST (BTG)", "CEO ANN LEE")[n % 2], text) for n, text in enumerate(TEXTS)]
    turns += [("ANALYST (Reece Bell)", "And what does it cost?"), ("CEO ANN LEE", "It costs nothing.")]
    transcript = read(lines(turns, end="\n\n"))
    assert said(transcript) == turns and not transcript.is_doubtful


def test_words_before_what_somebody_says_are_no_label_in_chinese(read):
    turns = [("小明小红"[n % 2 * 2 :][:2], f"我们今天看到了{n}条船。") for n in range(20)]
    turns[8] = (turns[8][0], "他看着大海。\n老人对他说：“你们跟我走吧。”")
    expected = [(name, text.replace("\n", " ")) for name, text in turns]
    assert said(read("".join(f"{name}：{text}\n" for name, text in turns))) == expected


def test_a_name_with_more_words_once_is_a_speaker(read):
    turns = [(("ANN LEE", "BOB REECE")[n % 2], text) for n, text in enumerate(TEXTS * 2)]
    turns[7:7] = [
        (
            "CID MOORE, ANALYST, BELL WORKS LONDON",
            "Good morning to all. On the bell, which obviously\nrings every day.",
        ),
        ("BOB REECE", "It does."),
        ("CID MOORE", "Thank you."),
        ("ANN LEE", "Thanks."),
        ("CID MOORE", "And the tide?"),
    ]
    transcript = read(lines(turns, end="\n\n"))
    expected = [(name, text.replace("\n", " ")) for name, text in turns]
    assert said(transcript) == expected and not transcript.is_doubtful


def test_short_lines_of_a_recognizer_that_repeat_are_no_names(read):
    texts = [
        "我们看到了一条大船",
        "今天的海很漂亮",
        "大家都在这里吃饭",
        "对",
        "对",
        "对",
        "对",
        "好看",
        "好看",
        "好看",
    ] * 12
    transcript = read("".join(f"{text}\n" for text in texts))
    assert not any("start alike" in doubt for doubt in transcript.doubts)


def test_values_that_a_recognizer_writes_before_the_words(read):
    text = "".join(
        f"[idx={n}] [{4 * n}.00s -> {4 * n + 4}.50s] [audio=4.5s] [rtf=0.{n:04d}]  {words}\n"
        for n, (_, words) in enumerate(TURNS[3:10])
    )
    transcript = read(text)
    assert [turn.text for turn in transcript.turns] == [" ".join(words for _, words in TURNS[3:10])]
    assert not transcript.is_doubtful and transcript.speakers == ()


def test_titles_of_chapters_with_times_are_no_names(read):
    text = "".join(
        f"{n // 3:02d}:{20 * (n % 3):02d} - {title}\n\nSo {words}\n\n"
        "And that is what we saw in the hall, on every day of that year.\n\n"
        for n, (title, (_, words)) in enumerate(zip(CHAPTERS, TURNS, strict=False))
    )
    assert not read(text).is_doubtful


def test_the_number_of_a_document_at_the_end_is_no_speech(read):
    transcript = read(lines(TURNS) + "\nDocument ABCD000020120427e84d000rt\n")
    assert said(transcript) == TURNS and not transcript.is_doubtful

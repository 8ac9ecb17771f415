"""Marks around the words of text: times in links and tags, arrows of another speaker, sections of a page, list of presenters."""

import pytest
from read_texts import said
from test_reading_signals import EXPECTED, LINES

from midthought.memory.turns import UNKNOWN_SPEAKER

TIMES = [f"00:00:{7 * n:02d}" for n in range(len(LINES))]


@pytest.mark.parametrize(
    "line",
    [
        '[<a id="{dashed}">{time}</a>]  {text}\n',
        "[**({time})**](https://example.org/watch?t={n}s)\n\n{text}\n\n",
        "*  {text} [[{time}](https://example.org/watch?t={n}s)]\n",
        "**{time}** · {text}\n\n",
        "{time} • {text}\n\n",
        "(Timestamp: {time} - {time})\n{text}\n",
    ],
)
def test_times_in_links_tags_and_before_dots_are_no_words(read, line):
    lines = [
        line.format(time=time, text=text, n=n, dashed=time.replace(":", "-"))
        for n, (time, text) in enumerate(zip(TIMES, LINES, strict=True))
    ]
    transcript = read("# The bell\n\n" + "".join(lines), "a.md")
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(LINES)
    assert transcript.has_times and not transcript.is_doubtful


@pytest.mark.parametrize("arrow", [">> ", "&gt;&gt; "])
@pytest.mark.parametrize("end", ["\n", " "])
def test_arrows_without_names_are_changes_of_speakers(read, arrow, end):
    long = [f"{text} And then we went home again." for text in LINES]
    transcript = read(end.join([long[0], *(arrow + text for text in long[1:])]))
    assert said(transcript) == [(UNKNOWN_SPEAKER, text) for text in long] and not transcript.is_doubtful


def test_a_folded_transcript_below_a_summary(read):
    top = "## Summary\nThe talk is about a bell, and a town.\n\n## Key Insights\n- Bells ring\n- Towns listen\n\n"
    words = " ".join(LINES)
    text = f"{top}## Full Transcript\n<details>\n<summary>Click to expand full transcript</summary>\n\n{words}\n</details>\n"
    assert " ".join(turn.text for turn in read(text, "a.md").turns) == words
    text = f"{top}<details>\n<summary>Show transcript</summary>\n\n{words}\n\n</details>\n"
    assert " ".join(turn.text for turn in read(text, "a.md").turns) == words


def test_presenters_and_links_below_headings_are_no_speech(read):
    names = ["AL", "BR"] * 4
    turns = [f"{name}: {text}\n\n" for name, text in zip(names, LINES, strict=True)]
    item = "## Item {}\n\nPresenter: Ann Lee (AL)\n\n- [proposal](https://example.org/{})\n- [slides](https://example.org)\n\n"
    parts = [item.format(n, n) + "".join(turns[2 * n : 2 * n + 2]) for n in range(4)]
    assert said(read("# Minutes\n\n" + "".join(parts), "a.md")) == list(zip(names, LINES, strict=True))


@pytest.mark.parametrize("label", ["*{} (0:0{}:00)*: ", "_{}_: ", ":**{}:** "])
def test_labels_in_italics_or_below_definitions(read, label):
    lines = [f"{label.format(name, n)}{text}\n\n" for n, (name, text) in enumerate(EXPECTED)]
    assert said(read("".join(lines), "a.markdown")) == EXPECTED


def test_bold_labels_of_any_shape(read):
    names = [name.replace("Ann Lee", "Ann | Lee") for name, _ in EXPECTED]
    lines = [f"**{name}**: {text}\n\n" for name, text in zip(names, LINES, strict=True)]
    assert said(read("".join(lines), "a.md")) == list(zip(names, LINES, strict=True))


def test_a_bold_label_with_a_bar_that_occurs_with_others(read):
    named = [("Ann Lee", LINES[0]), ("Bob | Reece", LINES[1]), ("Ann Lee", LINES[2]), ("Bob | Reece", LINES[3])]
    lines = [f"**{name}**: {text}\n\n" for name, text in named]
    assert said(read("".join(lines), "a.md")) == named


def test_times_in_code_marks_and_entities_in_headings(read):
    lines = [
        f"### 🟢 Speaker {n % 2 + 1} &nbsp;•&nbsp; `00:{7 * n:02d} – 00:{7 * n + 6:02d}`\n\n**`00:{7 * n:02d}`** — {text}\n\n"
        for n, text in enumerate(LINES)
    ]
    transcript = read("# Transcript\n\n" + "".join(lines), "a.md")
    assert said(transcript) == [(f"Speaker {n % 2 + 1}", text) for n, text in enumerate(LINES)]
    assert [turn.time for turn in transcript.turns][:3] == ["00:00:00", "00:00:07", "00:00:14"]


def test_lines_of_chinese_with_times_have_enough_words(read):
    lines = [f"[00:00:{2 * n:02d}] 各位最近這個行情我看很多人是睡不着覺{n}\n" for n in range(20)]
    assert not read("".join(lines), "a.md").is_doubtful


def test_one_question_and_one_answer_of_an_assistant(read):
    transcript = read("## Turn 1\n\n**User:** " + LINES[2] + "\n\n**Assistant:** " + " ".join(LINES[3:] * 2), "a.md")
    assert transcript.speakers == ("User", "Assistant") and not transcript.is_doubtful


def test_interjections_before_commas_are_no_labels(read):
    text = "\n".join(f"{'是的' if n % 2 else '哦'}，各位最近這個行情我看很多人是睡不着覺了{n}" for n in range(40))
    assert not read(text).is_doubtful


def test_a_label_that_never_says_a_sentence(read):
    parts = [
        f"Interview {n}: {name}\n\nInterviewed: {name}, a baker\n\n"
        + "".join(f"Asker: {LINES[2 * n + m]}\n\n{name}: {LINES[2 * n + m]}\n\n" for m in range(2))
        for n, name in enumerate(("Carl Ruoff", "Ann Lee", "Bob Reece"))
    ]
    transcript = read("".join(parts))
    assert transcript.is_doubtful and "Interviewed" in " ".join(transcript.doubts)


def test_a_first_line_with_a_key_is_no_speech(read):
    transcript = read("Interviewed : a woman of 23\nWhat did you buy last?\n" + "\n".join(LINES * 2))
    assert transcript.turns[0].text.startswith("What did") and ("Interviewed", "a woman of 23") in transcript.header


def test_words_without_a_period_between_times_are_no_names(read):
    said_words = [text if n % 5 else "Absolutely" if n else "Wonderful" for n, text in enumerate(LINES)]
    lines = [f"[**({time})**](https://example.org)\n\n{text}\n\n" for time, text in zip(TIMES, said_words, strict=True)]
    transcript = read("".join(lines), "a.md")
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(said_words) and not transcript.speakers


def test_times_without_a_blank_before_chinese_words(read):
    words = ["各位最近這個行情我看很多人是睡不着覺了", "那我們今天就來看一看這個市場的情況"] * 4
    lines = [f"[00:{n:02d}.00]{text}\n[00:{n:02d}.50]\n" for n, text in enumerate(words)]
    transcript = read("".join(lines))
    assert " ".join(turn.text for turn in transcript.turns) == " ".join(words)


def test_a_heading_such_as_further_reading_between_turns_is_no_end(read):
    turns = [f"{name}: 00:00:{7 * n:02d}\n\n{text}\n\n" for n, (name, text) in enumerate(EXPECTED)]
    text = "## The bell\n\n" + "".join(turns[:6]) + "## Further reading\n\n" + "".join(turns[6:])
    assert said(read(text, "a.md")) == EXPECTED


def test_wrapped_lines_that_start_like_a_last_heading_are_speech(read):
    text = "\n\n".join([*LINES * 2, "about the dynamics of humanity", *LINES[:3]])
    assert "about the dynamics of humanity So the bell" in " ".join(turn.text for turn in read(text).turns)


def test_titles_of_slides_between_dashes_are_no_speech(read):
    titles, words = ["Title page", "A set of problems...", "A different angle"], " ".join(LINES).split()
    parts = [f"--{title}--\n{' '.join(words[n::3])}.\n\n" for n, title in enumerate(titles)]
    transcript = read("".join(parts))
    assert transcript.num_words == len(words) and "--" not in transcript.turns[0].text
    assert [skip.text for skip in transcript.skipped][1] == "--A set of problems...--"
    assert "--so I said--" in read(f"{' '.join(LINES)}\n--so I said--\n{LINES[0]}").turns[0].text


def test_a_bold_name_above_bold_questions_is_doubtful(read):
    questions = "".join(f"**What about bell {n}?**\n\n{text}\n\n" for n, text in enumerate(LINES))
    assert read(f"# Questions\n\n**Ann Lee**\n\n{LINES[0]}\n\n{questions}", "a.md").is_doubtful
    assert not read(f"# Questions\n\n{LINES[0]}\n\n{questions}", "a.md").is_doubtful


def test_a_first_label_before_sentences_and_a_list_is_doubtful(read):
    first = f"**Carl**: {LINES[0]} {LINES[1]}\n\nSPEAKERS:\n- Ann Lee\n- Bob Reece\n\n=====\n\n"
    transcript = read(first + "".join(f"**{name}**: {text}\n\n" for name, text in EXPECTED), "a.md")
    assert transcript.is_doubtful and "Carl" in " ".join(transcript.doubts)


def test_blank_lines_within_sentences_start_no_turns(read):
    words = " ".join(f"and then we saw the {n} boats near the old harbor again" for n in range(40)).split()
    blocks = [" ".join(words[n : n + 6]) for n in range(0, len(words), 6)]
    blocks[20] = "Braunkohlerevier: " + blocks[20]
    for place, name in ((0, "Ann"), (30, "Bob"), (60, "Ann")):
        blocks[place] = f"{name}: {blocks[place]}"
    blocks[29], blocks[59] = blocks[29] + ".", blocks[59] + "."
    assert set(read("\n\n".join(blocks)).speakers) == {"Ann", "Bob"}


def test_lines_of_sentences_with_bullets_are_speech(read):
    words = " ".join(LINES * 2).split()
    lines = [f"*  {' '.join(words[n : n + 5])}\n" for n in range(0, len(words), 5)]
    assert not read("# The bell\n\n" + "".join(lines), "a.md").is_doubtful


@pytest.mark.parametrize(
    "words", ["Then click File >> Open >> Recent in the menu.", "We wrote x >> 2 and y >> 3 there."]
)
def test_arrows_within_a_sentence_start_no_turn(read, words):
    transcript = read(" ".join([words, *(f"This is the sentence of number {n}." for n in range(20))]))
    assert len(transcript.turns) == 1 and words in transcript.turns[0].text


def test_sentences_between_dashes_are_speech(read):
    words = [
        f"--{text}--" if n % 2 else text for n, text in enumerate(f"We saw {n} boats and a bell." for n in range(16))
    ]
    assert read("\n".join(words)).turns[0].text.count("boats") == 16

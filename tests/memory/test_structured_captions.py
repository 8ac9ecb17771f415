"""Captions: labels that are none, lines after a blank line, files without times."""

import pytest

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

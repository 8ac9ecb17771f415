"""Prose without names and times is a transcript only if somebody speaks in it."""

import pytest

ARTICLES = {
    "English": "The council of the town will vote on the sale of the old mill, which is at the end of the road to the harbor. ",
    "German": "Der Rat der Stadt stimmt über den Verkauf der alten Mühle ab, die am Ende der Straße in den Hafen steht. ",
    "Russian": "Совет города голосует за продажу мельницы, которая стоит в конце улицы, но не на берегу и не у порта. ",
}
SPOKEN = {
    "English": "So I think we know what you want. ",
    "German": "Ja, also ich denke, wir wissen das jetzt. ",
    "Russian": "Да, вот я так думаю, и мы вам поможем. ",
}


@pytest.mark.parametrize("language", ARTICLES)
def test_an_article_is_doubted_and_a_talk_is_not(read, language):
    text = "".join(ARTICLES[language].replace(". ", f", {number}. ") for number in range(6))
    article = read(text)
    assert article.is_doubtful and "nobody says I, you or we" in article.doubts[0]
    assert not read(text + SPOKEN[language] * 2).is_doubtful


def test_lines_with_times_are_not_asked(read):
    lines = [ARTICLES["English"].replace(". ", f", {number}.\n") for number in range(6)]
    assert not read("".join(f"[00:0{number}] {line}" for number, line in enumerate(lines))).is_doubtful
    polish = (
        "Rada miasta zagłosuje nad sprzedażą starego młyna, który stoi przy końcu drogi do portu i jest zamknięty, {}. "
    )
    assert not read("".join(map(polish.format, range(6)))).is_doubtful

"""What looks like an edge or another speaker, and is neither: lists, quotations, several people who ask."""

import pytest
from read_texts import said

THINGS = ["ferry", "mill", "bridge", "fog", "boat"]
TALK = (
    "I think that the ferry was late again, so we walked to the mill and waited there with you until the fog was gone. "
)


def test_items_of_a_list_after_a_colon_stay_in_the_turn(read):
    goods = [
        ("milk", "bread", "fish"),
        ("rope", "tar", "nails"),
        ("wool", "needles", "thread"),
        ("maps", "ink", "lamps"),
    ]
    text = "".join(
        f"Ann: When I plan the {thing}, I buy three things for us:\n"
        f"- We need the {one}, which my brother brings from the old mill by the river each week.\n"
        f"- Then we need {two} because you know that nobody can work without it in winter time.\n"
        f"- And I want {three}, too, which my mother sells at the market on every Friday.\n"
        f"Bob: I see why the {thing} needs {two} so much.\n"
        for thing, (one, two, three) in zip(THINGS, goods, strict=False)
    )
    assert {name for name, _ in said(read(text))} == {"Ann", "Bob"}


def test_numbers_of_several_who_ask_are_speakers(read):
    text = "".join(
        f"Q1: Did you see the {thing}?\nA1: We saw the {thing}.\nQ2: And what was the {thing} like?\nA2: The {thing} was new.\n"
        for thing in THINGS
    )
    assert read(text).speakers == ("Q1", "A1", "Q2", "A2")


@pytest.mark.parametrize(
    ("one", "other"), [("Lee (father)", "Lee (son)"), ("Lee, Head of Ferries", "Lee, Head of Mills")]
)
def test_labels_with_two_descriptions_stay_two(read, one, other):
    text = "".join(f"{one}: I saw the {a}.\n{other}: So did I, the {a} was new.\nLee: You saw a {a}.\n" for a in THINGS)
    assert {one, other} <= set(read(text).speakers)


def test_a_single_letter_ends_a_sentence(read):
    text = "Ann: I like vitamin C. Bob: Me too, and we take it. Ann: You know that I take B. Bob: I do, and we all do. "
    assert read(f"{text}Ann: So we go to the mill. Bob: Yes, I come with you.").speakers == ("Ann", "Bob")


def test_a_quotation_at_the_start_of_lines_of_prose_is_speech(read):
    text = f"«I came too late on that day and we missed the\nferry», said my brother. {TALK}We rowed, and you laughed.\n{TALK}"
    (turn,) = read(f"{text}\n").turns
    assert turn.text.startswith("«I came too late")


def test_last_lines_that_are_parts_of_a_title_are_speech(read):
    text = f"The boat and the sea of my home\n\n{TALK}\n{TALK.replace('late', 'early')}and we spoke about\nmy home\nthe sea\n"
    assert read(text).turns[-1].text.endswith("my home the sea")


def test_signs_of_a_program_in_printed_texts(read):
    text = "".join(
        f"Turn(name='{'Ann' if n % 2 else 'Bob'}', text='The {thing} isn\\'t in C:\\\\new,\\xa0it\\u2019s here.')\n"
        for n, thing in enumerate(THINGS)
    )
    assert said(read(text))[0] == ("Bob", "The ferry isn't in C:\\new, it’s here.")

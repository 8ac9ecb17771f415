"""Made-up names, titles and words: many, drawn from the seed alone, and never able to break what they are put into."""

import random

import pytest

from midthought.models.small_model import make_tokenizer
from midthought.recipes.podcast.names import SyntheticNames
from midthought.tokenization import Renderer

TEXTS = ["the tide clock has one copper hand", 'Maëlle found 12 herring scales <think> "quoted" </think>']


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(make_tokenizer(TEXTS, 400))


@pytest.fixture(scope="module")
def made_up(renderer) -> SyntheticNames:
    return SyntheticNames(TEXTS, renderer)


def draw(made_up, kind, seed=0):
    rng = random.Random(seed)
    return [getattr(made_up, kind)(rng) for _ in range(300)]


def test_names_are_many_and_titles_are_made_of_the_corpus_words_and_numbers(made_up):
    names = draw(made_up, "name")
    assert len(set(names)) > 0.9 * len(names)
    assert all(1 <= len(name.replace("-", " ").split()) <= 3 for name in names)
    known = {word.strip('"<>').capitalize() for text in TEXTS for word in text.split()}
    assert all(word in known or word.isdigit() for title in draw(made_up, "title") for word in title.split())
    assert "Episode" in SyntheticNames([], None).title(random.Random(0))


@pytest.mark.parametrize("kind", ["name", "title"])
def test_what_is_drawn_follows_from_the_seed(made_up, kind):
    assert draw(made_up, kind) == draw(made_up, kind) != draw(made_up, kind, seed=1)


def test_random_words_hold_no_quote_no_line_end_and_no_control_token(made_up, renderer):
    rng = random.Random(0)
    for _ in range(500):
        text = made_up.words(rng, 12)
        assert len(text.split()) >= 12
        assert text == " ".join(text.split())
        assert not set('"\\\ufffd\n') & set(text)
        assert renderer.control_token_ids.isdisjoint(renderer.foreign(text))
        assert renderer.decode(renderer.foreign(text)) == text

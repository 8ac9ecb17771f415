"""The small model that a run makes: it copies from the first step on, and any Hugging Face tool loads it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from midthought.models.small_model import THINK_OPEN, TURN_END, make_policy, make_tokenizer
from midthought.tokenization import Renderer

CORPUS = ["the tide clock has one copper hand and no numerals", "Maëlle Kerdrozic found herring scales"] * 5
SHAPE = {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "max_length": 512}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(CORPUS, 400)


@pytest.fixture(scope="module")
def policy(tokenizer):
    return make_policy(tokenizer, **SHAPE, seed=0).eval()


def best_guess_copies(policy, num_tokens=40, num_rows=8) -> float:
    """Share of tokens of the repetition that are the most probable ones."""
    generator = torch.Generator().manual_seed(2)
    once = torch.stack([torch.randperm(300, generator=generator)[:num_tokens] + 10 for _ in range(num_rows)])
    with torch.no_grad():
        guessed = policy(torch.cat([once, once], 1)).logits.argmax(-1)
    return float((guessed[:, num_tokens + 1 : -1] == once[:, 2:]).float().mean())


def test_it_copies_a_repeated_random_sequence_before_any_training(policy):
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(policy.config).eval()
    assert best_guess_copies(plain) < 0.1
    assert best_guess_copies(policy) > 0.4


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_randomness_alone(tokenizer, policy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again, other = make_policy(tokenizer, **SHAPE, seed=0), make_policy(tokenizer, **SHAPE, seed=1)
    assert torch.equal(torch.rand(3), expected)
    weights = policy.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in again.state_dict().items())
    assert any(not torch.equal(weight, weights[name]) for name, weight in other.state_dict().items())


@pytest.mark.parametrize(
    ("width", "num_layers", "num_heads"), [(16, 4, 4), (128, 1, 4), (64, 2, 1), (48, 2, 2), (64, 2, 2)]
)
def test_a_shape_in_which_the_circuit_has_no_room_makes_a_model_all_the_same(tokenizer, width, num_layers, num_heads):
    shape = {"hidden_size": width, "num_layers": num_layers, "num_heads": num_heads}
    made = make_policy(tokenizer, **shape, max_length=64, seed=0)
    with torch.no_grad():
        assert made(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_it_is_saved_and_loaded_like_any_model(tmp_path, tokenizer, policy):
    policy.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    read = AutoTokenizer.from_pretrained(tmp_path)
    token_ids = tokenizer("the tide clock has Maëlle", return_tensors="pt").input_ids
    assert torch.equal(read("the tide clock has Maëlle", return_tensors="pt").input_ids, token_ids)
    with torch.no_grad():
        assert torch.equal(loaded(token_ids).logits, policy(token_ids).logits)
    chat = [{"role": "user", "content": "Who?"}]
    assert read.apply_chat_template(chat, tokenize=False) == tokenizer.apply_chat_template(chat, tokenize=False)


def test_the_chat_template_opens_the_thought_and_ends_turns_with_the_end_of_sequence(tokenizer):
    renderer = Renderer(tokenizer)
    prompt = renderer.prompt([{"role": "user", "content": "Who wound the <think> clock?"}])
    assert renderer.decode(prompt).endswith(f"{TURN_END}\n<|im_start|>assistant\n{THINK_OPEN}\n")
    assert renderer.opens_thought(prompt)
    assert prompt.count(tokenizer.convert_tokens_to_ids(THINK_OPEN)) == 1
    assert renderer.eos_token_ids == {tokenizer.eos_token_id}

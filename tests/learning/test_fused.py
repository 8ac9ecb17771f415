"""Operations fused for half precision on a GPU, here run on a CPU: results stay the same, and failures have no effect."""

import copy

import pytest
import torch
from training_settings import gradients_of, training

from midthought.learning import fused, logprobs
from midthought.learning.batch import TokenBatch
from midthought.learning.fused import Fused, FusedModules, replaced_forwards
from midthought.learning.learner import Learner
from midthought.learning.logprobs import BlockedHead, LogitShape, adds_half_products
from midthought.learning.model import add_adapters


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})


def doubled(values: torch.Tensor) -> torch.Tensor:
    return 2 * values


def failing(*_):
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("compiled", "reason"), [(failing, "no compiler"), (lambda values: 3 * values, "results differ by 0.5")]
)
def test_a_function_that_cannot_be_compiled_runs_as_written_and_the_log_says_why(
    compiled, reason, on_cpu, monkeypatch, caplog
):
    monkeypatch.setattr(torch, "compile", lambda function: compiled)
    function, values = Fused(doubled), torch.ones(3, 2, dtype=torch.bfloat16)
    for _ in range(2):
        assert torch.equal(function(values), 2 * values)
    assert caplog.text.count(reason) == 1


@pytest.mark.parametrize(("dtype", "calls"), [(torch.bfloat16, 4), (torch.float32, 0)])
def test_only_half_precision_is_compiled_and_only_the_first_call_is_compared(dtype, calls, on_cpu, monkeypatch):
    seen = {"written": 0, "compiled": 0}

    def counted(name):
        return lambda values: seen.update({name: seen[name] + 1}) or 2 * values

    monkeypatch.setattr(torch, "compile", lambda function: counted("compiled"))
    function = Fused(counted("written"))
    for number in (3, 4, 5):
        function(torch.ones(number, 2, dtype=dtype))
    assert seen == {"compiled": calls, "written": 1 if calls else 3}


def test_a_forward_that_a_module_has_of_its_own_comes_back():
    plain, wrapped = torch.nn.Identity(), torch.nn.Identity()
    wrapped.forward = doubled
    with pytest.raises(RuntimeError, match="no compiler"), replaced_forwards([(plain, failing), (wrapped, failing)]):
        wrapped(torch.ones(1))
    assert wrapped.forward is doubled and "forward" not in vars(plain)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "entropy"), [(LogitShape(), True), (LogitShape(2.0, 3.0), False)])
def test_compiled_log_probabilities_and_their_gradients_are_the_same(shape, entropy, monkeypatch):
    found = []
    for devices in (set(), {"cpu"}):
        monkeypatch.setattr(fused, "DEVICES", devices)
        torch.manual_seed(0)
        hidden, weight = (torch.randn(size, 16).bfloat16().requires_grad_() for size in (23, 70))
        targets, temperatures = torch.randint(70, (23,)), torch.linspace(0.5, 2, 23)
        outputs = BlockedHead(weight, None, shape, 6).outputs(hidden, targets, temperatures, entropy=entropy)
        ((outputs[0] + 1).exp().sum() + outputs[1].square().sum()).backward()
        found.append((*outputs, hidden.grad, weight.grad))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=0.01, atol=0.01)


def test_a_device_that_adds_products_in_float32_gets_the_gradient_of_the_weight(monkeypatch):
    """A CPU does not; this one does what CUDA's `addmm` documents."""
    assert not adds_half_products(torch.device("cpu"), torch.bfloat16)
    calls = []

    def addmm(total, left, right, *, out_dtype, out):
        calls.append(out_dtype)
        return out.copy_(total + left.to(out_dtype) @ right.to(out_dtype))

    adds_half_products.cache_clear()
    gradients = []
    for is_added in (False, True):
        if is_added:
            monkeypatch.setattr(logprobs.torch, "addmm", addmm)
            adds_half_products.cache_clear()
        torch.manual_seed(0)
        hidden, weight = (torch.randn(size, 16).bfloat16().requires_grad_() for size in (23, 70))
        BlockedHead(weight, None, LogitShape(), 6).outputs(hidden, torch.randint(70, (23,)))[0].sum().backward()
        gradients.append(weight.grad)
    adds_half_products.cache_clear()
    assert calls == [torch.float32] * 5  # a check and four blocks
    torch.testing.assert_close(*gradients, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("kind", "number"), [("Qwen3", 9), ("Llama", 5), ("Gemma2", 0), ("GPT2", 0)])
def test_norms_that_compute_the_same_are_replaced_within_the_context(kind, number, make_policy, on_cpu):
    policy = make_policy(kind, **({"query_pre_attn_scalar": 16} if kind == "Gemma2" else {}))
    assert policy.config.num_hidden_layers == 2

    def replaced() -> int:
        return sum("forward" in vars(module) for module in policy.modules())

    with FusedModules(policy).active():
        assert replaced() == 0, "float32 stays"
    norms = FusedModules(policy.bfloat16())
    with norms.active():
        assert replaced() == number
    assert replaced() == 0


@pytest.mark.parametrize("changes", [{}, {"use_rslora": True}, {"use_dora": True}])
def test_lora_layers_are_replaced_unless_they_compute_something_else(changes, make_policy, on_cpu):
    import peft

    config = peft.LoraConfig(
        r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **changes
    )
    policy = peft.get_peft_model(make_policy().bfloat16(), config).eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        plain = policy(input_ids=tokens).logits
        with policy.disable_adapter():
            base = policy(input_ids=tokens).logits
        with FusedModules(policy).active():
            replaced = sum("forward" in vars(module) for module in policy.modules() if hasattr(module, "base_layer"))
            found = policy(input_ids=tokens).logits
            with policy.disable_adapter():
                disabled = policy(input_ids=tokens).logits
    assert replaced == (0 if "use_dora" in changes else 4)
    far = (plain - base).norm()
    assert (found - plain).norm() < 0.1 * far and (disabled - base).norm() < 0.1 * far


@pytest.mark.parametrize("rank", [0, 4])
def test_a_learner_with_fused_modules_is_as_near_to_float32(rank, make_policy, make_trajectory, monkeypatch):
    policy = make_policy().bfloat16()
    if rank:
        policy = add_adapters(policy, rank, 2 * rank)
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    batch = TokenBatch.from_trajectories([make_trajectory(seed, group=0) for seed in range(4)])
    settings = training(adv_estimator="grpo", gradient_checkpointing=True, logits_mib=48 * 4 * 64 / 2**20)

    def gradient(policy) -> torch.Tensor:
        learner = Learner(copy.deepcopy(policy), None, None, settings)
        learner.sft_step(batch)
        return gradients_of(learner)

    exact, plain = gradient(copy.deepcopy(policy).float()), gradient(policy)
    monkeypatch.setattr(fused, "DEVICES", {"cpu"})
    found = gradient(policy)
    assert not torch.equal(found, plain)
    assert (found - exact).norm() <= 1.5 * (plain - exact).norm()

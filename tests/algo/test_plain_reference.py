"""Every estimator, average, divergence and weight, and the clipped losses, against loops over plain numbers, on random ragged
batches. Other losses: test_every_loss.py.

The reference below knows no tensor: an episode is a list of tokens, and a tool's tokens are simply not looked at.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev

import pytest
import torch
from token_rows import rows_of

from midthought.algo.advantages import AdvantageEstimator, compute_advantage
from midthought.algo.aggregation import LossAggregation, loss_weights
from midthought.algo.correction import CorrectionLevel, RolloutCorrection, rollout_weights
from midthought.algo.kl import KLKind, apply_kl_penalty, kl_divergence
from midthought.algo.losses import compute_policy_loss, compute_value_loss

SEEDS = range(6)
GAMMA, LAM = 0.93, 0.8


@dataclass
class Token:
    """One token; all figures of a tool's token are rubbish that nobody may look at."""

    is_policy: bool
    turn: int
    call: int
    reward: float
    value: float
    old: float
    new: float
    sampled: float
    target: float
    """Of the value function."""
    advantage: float


@dataclass
class Episode:
    group: int
    tokens: list[Token]

    @property
    def own(self) -> list[Token]:
        return [token for token in self.tokens if token.is_policy]


def random_batch(seed: int) -> list[Episode]:
    draw = random.Random(seed)
    episodes = []
    for group in [0, 0, 0, 1, 1, 2, 2, 2, 2]:
        tokens: list[Token] = []
        call = 0
        for turn in range(draw.randint(1, 4)):
            for _ in range(draw.randint(1, 5)):
                figures = [draw.gauss(0, 1) for _ in range(3)]
                old = -draw.expovariate(1)
                near = [old + draw.gauss(0, 0.5) for _ in range(2)]
                call += draw.random() < 0.3 and bool(tokens)
                tokens.append(Token(True, turn, call, *figures[:2], old, *near, figures[2], draw.gauss(0, 1)))
            tokens += [Token(False, -1, -1, *[draw.uniform(-1e6, 1e6)] * 7) for _ in range(draw.randint(0, 4))]
        episodes.append(Episode(group, tokens))
    draw.shuffle(episodes)
    return episodes


def table(episodes: list[Episode], name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """[E, T], padded on the right with rubbish."""
    width = max(len(episode.tokens) for episode in episodes) + 2
    rows = [[getattr(token, name) for token in episode.tokens] for episode in episodes]
    padding = False if name == "is_policy" else 12345
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows], dtype=dtype)


def policy_mask(episodes: list[Episode]) -> torch.Tensor:
    return table(episodes, "is_policy", torch.bool)


def at_policy_tokens(tensor: torch.Tensor, mask: torch.Tensor) -> list[float]:
    assert not tensor[~mask].any(), "something stands outside the mask"
    return tensor[mask].tolist()


def close(actual: list[float] | float, expected: list[float] | float) -> None:
    assert actual == pytest.approx(expected, rel=1e-6, abs=1e-6)


# -- advantages ----------------------------------------------------------------------------------------------------


def whitened(rows: list[list[float]]) -> list[list[float]]:
    flat = [figure for row in rows for figure in row]
    mean = fmean(flat)
    deviation = math.sqrt(sum((figure - mean) ** 2 for figure in flat) / (len(flat) - 1) + 1e-8)
    return [[(figure - mean) / deviation for figure in row] for row in rows]


def over_tokens(episodes: list[Episode], figures: list[float]) -> list[list[float]]:
    return [[figure] * len(episode.own) for episode, figure in zip(episodes, figures, strict=True)]


def plain_scores(episodes: list[Episode]) -> list[float]:
    return [sum(token.reward for token in episode.own) for episode in episodes]


def plain_gae(episodes: list[Episode]) -> list[list[float]]:
    rows = []
    for episode in episodes:
        row, advantage, next_value = [], 0.0, 0.0
        for token in reversed(episode.own):
            advantage = token.reward + GAMMA * next_value - token.value + GAMMA * LAM * advantage
            next_value = token.value
            row.append(advantage)
        rows.append(row[::-1])
    return whitened(rows)


def plain_to_go(episode: Episode, gamma: float) -> list[float]:
    found, rest = [], 0.0
    for token in reversed(episode.own):
        rest = token.reward + gamma * rest
        found.append(rest)
    return found[::-1]


def plain_in_group(episodes: list[Episode], judge) -> list[float]:
    """`judge(own score, the group's scores, the others' scores)` for every episode."""
    scores = plain_scores(episodes)
    found = []
    for number, episode in enumerate(episodes):
        mates = [other for other, mate in enumerate(episodes) if mate.group == episode.group]
        others = [scores[other] for other in mates if other != number]
        found.append(judge(scores[number], [scores[mate] for mate in mates], others))
    return found


def plain_steps(episodes: list[Episode], step_of: Callable[[Token], int]) -> list[list[float]]:
    to_go: list[dict[int, float]] = []
    for episode in episodes:
        by_step: dict[int, float] = defaultdict(float)
        for token in episode.own:
            by_step[step_of(token)] += token.reward
        to_go.append(
            {
                step: sum(GAMMA ** (later - step) * paid for later, paid in by_step.items() if later >= step)
                for step in by_step
            }
        )
    rows = []
    for number, episode in enumerate(episodes):
        row = []
        for token in episode.own:
            mates = [
                to_go[other][step_of(token)]
                for other, mate in enumerate(episodes)
                if mate.group == episode.group and step_of(token) in to_go[other]
            ]
            alone = len(mates) < 2
            row.append(0.0 if alone else (to_go[number][step_of(token)] - fmean(mates)) / (stdev(mates) + 1e-6))
        rows.append(row)
    return rows


def plain_advantages(name: str, episodes: list[Episode]) -> list[list[float]]:
    if name == "gae":
        return plain_gae(episodes)
    if name == "grpo":
        standardised = plain_in_group(episodes, lambda own, all_, _: (own - fmean(all_)) / (stdev(all_) + 1e-6))
        return over_tokens(episodes, standardised)
    if name in ("dr_grpo", "reinforce_plus_plus_baseline"):
        rows = over_tokens(episodes, plain_in_group(episodes, lambda own, all_, _: own - fmean(all_)))
        return rows if name == "dr_grpo" else whitened(rows)
    if name == "rloo":
        return over_tokens(episodes, plain_in_group(episodes, lambda own, _, others: own - fmean(others)))
    if name == "reinforce_plus_plus":
        return whitened([plain_to_go(episode, GAMMA) for episode in episodes])
    if name == "keep_best":
        best = plain_in_group(episodes, lambda own, all_, _: float(own == max(all_) and len(all_) > 1))
        return over_tokens(episodes, best)
    if name == "zero":
        return over_tokens(episodes, [0.0] * len(episodes))
    return plain_steps(episodes, lambda token: token.turn if name == "grpo_turns" else token.call)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", list(AdvantageEstimator))
def test_every_estimator_gives_what_plain_loops_give(name, seed):
    episodes = random_batch(seed)
    mask = policy_mask(episodes)
    advantages, _ = compute_advantage(
        name,
        table(episodes, "reward"),
        mask,
        values=table(episodes, "value"),
        index=torch.tensor([episode.group for episode in episodes]),
        turns=table(episodes, "turn", torch.int64),
        calls=table(episodes, "call", torch.int64),
        gamma=GAMMA,
        lam=LAM,
    )
    close(at_policy_tokens(advantages, mask), [a for row in plain_advantages(name, episodes) for a in row])


# -- losses and their averages -------------------------------------------------------------------------------------

LOW, HIGH, DUAL = 0.2, 0.28, 1.7


def plain_losses(kind: str, episode: Episode) -> list[float]:
    tokens = episode.own
    mean = fmean(token.new - token.old for token in tokens)
    losses = []
    for token in tokens:
        ratio = math.exp(mean if kind == "gspo" else token.new - token.old)
        bounded = min(max(ratio, 1 - LOW), 1 + HIGH)
        if kind == "cispo":
            losses.append(-bounded * token.advantage * token.new)
            continue
        loss = max(-ratio * token.advantage, -bounded * token.advantage)
        if kind == "ppo" and token.advantage < 0:
            loss = min(loss, -DUAL * token.advantage)
        losses.append(loss)
    return losses


def plain_average(kind: str, rows: list[list[float]], constant: int) -> float:
    if kind == "token-mean":
        return fmean(loss for row in rows for loss in row)
    if kind == "seq-mean-token-mean":
        return fmean(fmean(row) for row in rows)
    total = fmean(sum(row) for row in rows)
    return total if kind == "seq-mean-token-sum" else total / constant


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("average", list(LossAggregation))
@pytest.mark.parametrize("kind", ["ppo", "gspo", "cispo"])
def test_every_loss_under_every_average_gives_what_plain_loops_give(kind, average, seed):
    episodes = random_batch(seed)
    mask = policy_mask(episodes)
    weights, denominator = loss_weights(mask, rows_of(mask), average, norm_tokens=17)
    loss, _ = compute_policy_loss(
        table(episodes, "old"),
        table(episodes, "new"),
        table(episodes, "advantage"),
        mask,
        clip_low=LOW,
        clip_high=HIGH,
        denominator=denominator,
        dual_clip=DUAL,
        kind=kind,
        weights=weights,
    )
    close(float(loss), plain_average(average, [plain_losses(kind, episode) for episode in episodes], 17))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_value_loss_gives_what_plain_loops_give(seed):
    episodes = random_batch(seed)
    new, old, targets = (table(episodes, name) for name in ("value", "advantage", "target"))
    loss, _ = compute_value_loss(
        vpreds=new, old_values=old, returns=targets, response_mask=policy_mask(episodes), cliprange_value=0.4
    )
    expected = []
    for token in (token for episode in episodes for token in episode.own):
        held = token.advantage + min(max(token.value - token.advantage, -0.4), 0.4)
        expected.append(0.5 * max((token.value - token.target) ** 2, (held - token.target) ** 2))
    close(float(loss), fmean(expected))


# -- divergences and weights ---------------------------------------------------------------------------------------


def plain_divergence(kind: str, x: float) -> float:
    return {"k1": x, "abs": abs(x), "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[kind]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", list(KLKind))
def test_every_divergence_and_its_penalty_give_what_plain_loops_give(kind, seed):
    episodes = random_batch(seed)
    mask, new, old = policy_mask(episodes), table(episodes, "new"), table(episodes, "old")
    own = [token for episode in episodes for token in episode.own]
    expected = [plain_divergence(kind, token.new - token.old) for token in own]
    close(kl_divergence(new, old, kind)[mask].tolist(), expected)
    penalised, mean = apply_kl_penalty(table(episodes, "reward"), new, old, mask, 0.3, kind)
    close(penalised[mask].tolist(), [token.reward - 0.3 * kl for token, kl in zip(own, expected, strict=True)])
    close(float(mean), fmean(expected))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", list(CorrectionLevel))
@pytest.mark.parametrize("kind", list(RolloutCorrection))
def test_every_weight_gives_what_plain_loops_give(kind, level, seed):
    episodes = random_batch(seed)
    mask = policy_mask(episodes)
    limits = {"max_weight": 1.5, "min_weight": 0.6}
    places = {"episodes": rows_of(mask), "turns": table(episodes, "turn", torch.int64)}
    weights, figures = rollout_weights(
        table(episodes, "old"), table(episodes, "sampled"), mask, kind, level=level, **places, **limits
    )
    expected, outside = [], []
    for episode in episodes:
        for token in episode.own:
            parts = {
                "token": [token],
                "turn": [other for other in episode.own if other.turn == token.turn],
                "sequence": episode.own,
            }
            ratio = math.exp(sum(other.old - other.sampled for other in parts[level]))
            if kind == "truncated":
                expected.append(min(ratio, 1.5))
                outside.append(ratio > 1.5)
            else:
                expected.append(ratio if 0.6 <= ratio <= 1.5 else 0.0)
                outside.append(not 0.6 <= ratio <= 1.5)
    close(at_policy_tokens(weights, mask), expected)
    close(figures["rollout_weight_mean"], fmean(expected))
    close(figures[f"rollout_{kind.value}_fraction"], fmean(outside))

"""Measures of one ranking. Does not depend on a memory.

A ranking is given by its gains: for each hit, best first, the number of relevant items that this hit covers and no earlier
hit did. Relevance is binary: a hit covers an item or not. The values equal trec_eval's if each hit covers at most one item.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def recall_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns the share of the relevant items that the first `k` hits cover: sum of gains 1 … k / number of relevant items.

    trec_eval's `recall_k`; Manning, Raghavan and Schütze, "Introduction to Information Retrieval" (2008), section 8.3.
    """
    return sum(gains[:k]) / num_relevant


def all_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns 1 if the first `k` hits cover every relevant item, else 0.

    `recall_all@k` of LongMemEval (Wu et al., 2024, arXiv 2410.10813; `src/retrieval/eval_utils.py`).
    """
    return float(sum(gains[:k]) >= num_relevant)


def reciprocal_rank(gains: Sequence[int], k: int) -> float:
    """Returns 1 / rank of the first hit that covers a relevant item; 0 if none of the first `k` does.

    Its mean over questions is MRR@k: Voorhees, "The TREC-8 Question Answering Track Report" (1999).
    """
    return next((1 / rank for rank, gain in enumerate(gains[:k], 1) if gain), 0.0)


def ndcg_at(gains: Sequence[int], num_relevant: int, k: int) -> float:
    """Returns DCG@k / DCG@k of a ranking with every relevant item first, where DCG@k = Σ rel(i) / log2(i + 1), i = 1 … k.

    rel(i) is 1 if hit i covers an item that no earlier hit covers, else 0. trec_eval's `ndcg_cut_k`; Järvelin and Kekäläinen,
    "Cumulated gain-based evaluation of IR techniques" (2002), with the discount of Burges et al. (2005). LongMemEval's own
    script does not discount the second hit, so its values are a little higher.
    """
    reached = sum(_discount(rank) for rank, gain in enumerate(gains[:k], 1) if gain)
    return reached / sum(_discount(rank) for rank in range(1, min(num_relevant, k) + 1))


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)

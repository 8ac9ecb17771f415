"""A model as bytes: its modules without their tensors, its tensors in buckets, digests that tell what arrived."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from midthought.cluster.process import (
    bytes_of,
    deserialize,
    digest_of,
    fill_placeholders,
    named_tensors,
    placeholder_of,
    serialize,
    write_bytes,
)
from midthought.learning.remote_learner import BUCKET_BYTES, buckets


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3, dtype=torch.bfloat16)
        self.head = nn.Linear(3, 7, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.register_buffer("counts", torch.arange(5), persistent=False)
        self.register_buffer("empty", torch.zeros(0, 4))
        self.scale = nn.Parameter(torch.tensor(2.5))


def copied(model: nn.Module) -> nn.Module:
    tensors = named_tensors(model)
    twin = deserialize(serialize(model, "the model", placeholder_of(tensors)), "the model", fill_placeholders("cpu"))
    write_bytes(named_tensors(twin), {name: bytes_of(tensor) for name, tensor in tensors.items()})
    return twin


def test_a_copy_has_the_same_bits_types_and_ties():
    model = Tied()
    twin = copied(model)
    assert twin.head.weight is twin.embedding.weight
    assert list(named_tensors(twin)) == ["scale", "embedding.weight", "counts", "empty"]
    for name, tensor in named_tensors(twin).items():
        assert torch.equal(tensor, named_tensors(model)[name]) and tensor.dtype is named_tensors(model)[name].dtype
        assert digest_of(tensor) == digest_of(named_tensors(model)[name])


def test_the_modules_travel_without_their_tensors():
    model = nn.Linear(1000, 1000)
    assert len(serialize(model, "the model", placeholder_of(named_tensors(model)))) < 2000


def test_weights_are_written_where_they_are():
    model, twin = Tied(), copied(Tied())
    weight = twin.embedding.weight
    write_bytes(named_tensors(twin), {"embedding.weight": bytes_of(model.embedding.weight)})
    assert twin.embedding.weight is weight and torch.equal(weight, model.embedding.weight)
    assert torch.equal(twin.head.weight, model.embedding.weight)


def test_one_bit_is_another_digest():
    tensor = torch.zeros(100)
    before = digest_of(tensor)
    tensor[99] = -0.0
    assert digest_of(tensor) != before


@given(st.lists(st.integers(0, 300 * 2**20), max_size=6))
def test_buckets_hold_every_tensor_once_and_too_many_bytes_only_of_one(numbers):
    sizes = {f"t{place}": number for place, number in enumerate(numbers)}
    found = list(buckets(sizes))
    assert [name for bucket in found for name in bucket] == list(sizes)
    assert all(len(bucket) == 1 or sum(sizes[name] for name in bucket) <= BUCKET_BYTES for bucket in found)


def test_a_tensor_that_does_not_lie_in_one_piece_arrives_as_it_reads():
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).view(3, 2).T)
    assert torch.equal(copied(model).weight, model.weight)

"""Nodes of tensors on the host beside a training on another device."""

import numpy as np
import torch

from dasktune.trainer.carried.originals import Originals
from dasktune.trainer.carried.packing import Packer
from dasktune.trainer.carried.places import SavedParts
from dasktune.trainer.carried.restoring import Restorer

NOTHING = SavedParts({}, {})


def test_a_tensor_on_the_host_stays_there():
    packer = Packer(
        Originals(NOTHING, lambda value: False),
        NOTHING,
        type_named=lambda name: None,
        users_at=lambda address: [],
        is_on_cpu=False,
    )
    values = [torch.arange(6.0).reshape(2, 3).t(), np.zeros(2), (torch.ones(1), 3)]
    nodes = [packer.node(value) for value in values]
    restorer = Restorer({}, NOTHING, type_named=lambda name: None, device="meta")
    tensor, array, pair = map(restorer.value, nodes)
    assert (tensor.device.type, pair[0].device.type) == ("cpu", "cpu")
    assert torch.equal(tensor, values[0])
    assert tensor.stride() == values[0].stride()
    assert array.tolist() == [0.0, 0.0]
    assert restorer.value(torch.ones(1)).device.type == "meta"

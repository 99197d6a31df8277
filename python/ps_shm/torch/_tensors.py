"""Published tensors where they lie, for readers that need no copy of their own."""

import warnings

import torch

from .. import Generation


def tensors(generation: Generation) -> dict[str, torch.Tensor]:
    """Returns the tensors of a generation in shared memory, without a copy.

        model.load_state_dict(ps_shm.torch.tensors(subscriber.read()), strict=False)

    A publication has a tensor that the publisher's model has under several names, such as tied weights, under the first
    one, so its state_dict() has more names.

    Each of them keeps the generation leased, and a subscriber can hold two generations at a time. The memory is
    read-only, which PyTorch does not know: writing to such a tensor ends the process with SIGSEGV. Copy a tensor before
    you change it.

    Args:
        generation: what Subscriber.read() returned.

    Raises:
        TypeError: PyTorch does not have the type of a tensor.
    """
    found = {}
    for name in generation.names:
        try:
            found[name] = torch.from_dlpack(generation.dlpack(name))
        except RuntimeError:  # PyTorch before 2.2 takes no bool there
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that the memory is read-only
                found[name] = torch.from_numpy(generation[name])
    return found

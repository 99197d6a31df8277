"""Transfers a model on a GPU to and from a job. Parameters and gradients lie in two blocks of device memory."""

from typing import Any

import torch

from .. import Bundle
from ._model import Tensors, note_writes

ALIGNMENT = 64  # in floats; a link requires this alignment of each tensor


def _aligned(floats: int, device: torch.device) -> torch.Tensor:
    memory = torch.zeros(floats + ALIGNMENT, dtype=torch.float32, device=device)
    begin = -(memory.data_ptr() // memory.element_size()) % ALIGNMENT
    return memory[begin : begin + floats]


def _stream_of(link: Any, device: torch.device) -> Any:
    return torch.cuda.ExternalStream(link.stream, device=device)


class Gpu:
    """Moves the parameters into one block of device memory, and transfers them and their gradients.

    Parameters of half precision stay where they are: the block has them in float32.

    A push or a pull waits for the work that PyTorch has enqueued on the current stream. It returns when it is done, so
    work that is enqueued afterwards runs after it.
    """

    def __init__(self, bundle: Bundle, parameters: dict[str, torch.nn.Parameter], wire: str) -> None:
        self._device = next(iter(parameters.values())).device
        places, floats = {}, 0
        for name, p in parameters.items():
            places[name] = floats
            floats += -(-p.numel() // ALIGNMENT) * ALIGNMENT
        self._values, self._gradients = (_aligned(floats, self._device) for _ in range(2))

        def view(block: torch.Tensor, name: str) -> torch.Tensor:
            shape = parameters[name].shape
            return block[places[name] : places[name] + shape.numel()].view(shape)

        self._parameters = parameters
        self._places = {name: view(self._values, name) for name in parameters}
        self._sent: Tensors = {name: view(self._gradients, name) for name in parameters}
        with torch.cuda.device(self._device):
            self._link = bundle.link(
                [t.data_ptr() for t in self._places.values()],
                [t.data_ptr() for t in self._sent.values()],
                device=self._device.index or 0,
                wire=wire,
            )
        self._stream = _stream_of(self._link, self._device)

    def push(self, gradients: list[torch.Tensor]) -> None:
        """Pushes the gradients, one for each parameter in its order."""
        for buffer, gradient in zip(self._sent.values(), gradients):
            buffer.copy_(gradient.detach() if gradient.layout == torch.strided else gradient.detach().to_dense())
        self._wait_for_current()
        with torch.cuda.device(self._device):  # the link changes the thread's current device
            self._link.push()

    def pull(self) -> None:
        """Pulls the parameters into the model."""
        for name, p in self._parameters.items():
            if p.dtype == torch.float32 and p.data_ptr() != self._places[name].data_ptr():  # the parameter has been given other memory
                p.data = self._places[name]
        self._wait_for_current()
        with torch.cuda.device(self._device):
            self._link.pull()
        for name, p in self._parameters.items():
            if p.dtype != torch.float32:
                p.detach().copy_(self._places[name])
        note_writes(self._parameters.values())

    def close(self) -> None:
        """Waits for the GPU. The parameters stay in the block."""
        with torch.cuda.device(self._device):
            self._link.close()

    def _wait_for_current(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

"""A model's way to and from a job when it is on a GPU: its parameters and gradients lie in two blocks of device memory."""

from typing import Any

import torch

from .. import Bundle
from ._model import Tensors

ALIGNMENT = 64  # floats: what a link wants of each place


def _aligned(floats: int, device: torch.device) -> torch.Tensor:
    room = torch.zeros(floats + ALIGNMENT, device=device)
    begin = -(room.data_ptr() // room.element_size()) % ALIGNMENT
    return room[begin : begin + floats]


def _stream_of(link: Any, device: torch.device) -> Any:
    return torch.cuda.ExternalStream(link.stream, device=device)


class Gpu:
    """Moves the parameters into a block of its own. What PyTorch has enqueued on the current stream comes before each push
    and pull; what it enqueues afterwards comes behind them, for they return when they are done."""

    def __init__(self, bundle: Bundle, parameters: dict[str, torch.nn.Parameter]) -> None:
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
        self.rooms: Tensors = {name: view(self._gradients, name) for name in parameters}
        with torch.cuda.device(self._device):
            self._link = bundle.link(
                [t.data_ptr() for t in self._places.values()],
                [t.data_ptr() for t in self.rooms.values()],
                device=self._device.index or 0,
            )
        self._stream = _stream_of(self._link, self._device)

    def push(self) -> None:
        """Pushes the gradients that are in `rooms`."""
        self._wait_for_current()
        with torch.cuda.device(self._device):  # a link leaves the thread at its own
            self._link.push()

    def pull(self) -> None:
        """Pulls the parameters."""
        for name, p in self._parameters.items():
            if p.data_ptr() != self._places[name].data_ptr():  # somebody has given it other memory
                p.data = self._places[name]
        self._wait_for_current()
        with torch.cuda.device(self._device):
            self._link.pull()

    def close(self) -> None:
        """Waits for the GPU. The parameters stay where they are."""
        with torch.cuda.device(self._device):
            self._link.close()

    def _wait_for_current(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

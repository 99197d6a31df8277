"""Weights for TRL's trainers with `vllm_mode="server"`: through shared memory instead of NCCL, from GPUs as from CPUs.

    ps_shm.engines.trl.use()                   # before the trainer is made
    trainer = GRPOTrainer(model, args=GRPOConfig(use_vllm=True, vllm_mode="server", ...), ...)

The server is vLLM's, on the same machine, with `--weight-transfer-config '{"backend": "ps_shm"}'`. The interface is that of
TRL 1.16.
"""

# TRL is there only where this is used.
# mypy: disable-error-code="import-not-found, misc"

import uuid
from typing import Any, Iterable, Iterator, Optional, Sequence

import torch
import trl.generation.vllm_generation
from trl.generation.vllm_client import VLLMClient

from .. import _publication
from .http import Engines


class Client(VLLMClient):
    """TRL's client of a vLLM server, with other ways for weights.

    Each update is one generation of a publication, which has all parameters of the model.
    """

    def init_communicator(self, device: Any = 0) -> None:
        """Does nothing that needs the device: the first update makes the publication, and names it to the server."""
        self._engines = Engines([self.base_url])
        self._publisher: Optional[_publication.Publisher] = None

    def update_named_params(
        self, metadata: Sequence[tuple[str, str, Sequence[int]]], named_params: Iterable[tuple[str, torch.Tensor]]
    ) -> None:
        """Publishes the parameters, and returns when all workers of the server have them.

        Args:
            metadata: name, dtype and shape of each parameter of the model, the same in each update.
            named_params: name and tensor of each of them, one at a time.

        Raises:
            EngineError: the server did not load them. It goes on with those that it has.
        """
        if self._publisher is None:
            # Of its own for each trainer, so that the server does not take the generations of an earlier run.
            publication = f"trl-{uuid.uuid4().hex[:16]}"
            specs = {name: (dtype, tuple(shape)) for name, dtype, shape in metadata}
            publisher = _publication.Publisher(publication, specs, records=3)
            self._engines.init(publication)
            self._publisher = publisher
        with self._publisher.begin() as generation:
            for name, tensor in named_params:
                generation.write(name, tensor.detach().cpu().contiguous())
        self._engines.update(generation.number)

    def update_named_param(self, name: str, weights: torch.Tensor) -> None:
        raise TypeError("ps_shm: a generation has all parameters: call update_model_params() or update_named_params()")

    def weight_update(self) -> Iterator[None]:
        raise TypeError("ps_shm: a generation has all parameters: call update_model_params() or update_named_params()")

    def close_communicator(self) -> None:
        """Ends the publication. The server keeps the weights that it has."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


def use() -> None:
    """Makes the trainers of TRL that are made from now on in this process use Client."""
    trl.generation.vllm_generation.VLLMClient = Client


__all__ = ["Client", "use"]

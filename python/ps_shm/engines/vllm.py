"""The backend `ps_shm` of vLLM's weight transfer: its workers take the weights from a publication, where they lie.

With the package installed, vLLM finds it by itself (an entry point of `vllm.general_plugins`):

    vllm serve MODEL --weight-transfer-config '{"backend": "ps_shm"}'

A trainer publishes and tells the engine, by ps_shm.engines.http.Engines or by vLLM's own interface:

    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    trainer = WeightTransferTrainerFactory.trainer_init(
        ps_shm.engines.vllm.trainer_info("weights", rank=rank), client=client, source=source)
    trainer.send_weights()                     # one generation, in every worker of the engine

The interface is that of vLLM 0.32 and 0.33.
"""

# vLLM is there only where this is used.
# mypy: disable-error-code="import-not-found"

from typing import Any

_BACKEND = "ps_shm"
_MODULE = "ps_shm.engines._vllm"


def register() -> None:
    """Makes the backend known to vLLM in this process. vLLM calls it as a plugin; a second call does nothing."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    for factory, name in ((WeightTransferEngineFactory, "Engine"), (WeightTransferTrainerFactory, "Trainer")):
        try:
            factory.register_engine(_BACKEND, _MODULE, name)
        except ValueError:  # it is registered
            pass


def trainer_info(name: str, *, rank: int, group: str = "", subscribers: int = 64, records: int = 3) -> Any:
    """Returns what vLLM's WeightTransferTrainerFactory.trainer_init() takes as `init_info`, and registers the backend.

    Args:
        name: the name of the publication.
        rank: this trainer process's rank. Rank 0 publishes; the others take part in gathering the weights.
        group: the Unix group that may use the publication. Empty: only this user.
        subscribers: the largest number of vLLM workers at one time.
        records: the number of generations that the publication can hold.
    """
    register()
    from ._vllm import TrainerInfo

    return TrainerInfo(name, group, subscribers, records, rank=rank)

"""A weight-sync scheme for TorchRL: a trainer publishes the weights of a policy, and collectors' workers take them.

    scheme = ps_shm.engines.torchrl.scheme("policy")
    collector = MultiSyncCollector([make_env] * 8, policy, weight_sync_schemes={"policy": scheme}, ...)
    for batch in collector:
        train(policy, batch)
        collector.update_policy_weights_()

Each worker takes the newest generation before it collects its next batch, so a batch has the weights of one generation.
The interface is that of TorchRL 0.14.1.
"""

# TorchRL is there only where this is used.
# mypy: disable-error-code="import-not-found"

from typing import Any


def register() -> None:
    """Makes the backend `ps_shm` known to TorchRL's WeightSyncScheme.from_backend() in this process."""
    from torchrl.weight_update.weight_sync_schemes import register_weight_sync_backend

    from ._torchrl import Scheme

    register_weight_sync_backend("ps_shm")(Scheme)


def scheme(
    name: str, *, group: str = "", subscribers: int = 64, records: int = 0, timeout: float = 60.0, strategy: str = "tensordict"
) -> Any:
    """Returns the scheme of one model, a TorchRL WeightSyncScheme, for the sender as for all receivers.

    Args:
        name: the name of the publication.
        group: the Unix group that may use the publication. Empty: only this user.
        subscribers: the largest number of workers at one time.
        records: the number of generations that the publication can hold. 0: as many as fit into 256 MiB, but at least
            four.
        timeout: how long a worker waits for the first generation, and the sender for workers that hold all records, in
            seconds.
        strategy: TorchRL's: how weights are taken from a model, "tensordict" or "state_dict".
    """
    from ._torchrl import Scheme

    return Scheme(name, group=group, subscribers=subscribers, records=records, timeout=timeout, strategy=strategy)


__all__ = ["register", "scheme"]

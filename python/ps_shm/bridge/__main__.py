"""The program `python -m ps_shm.bridge`."""

import sys


def main() -> None:
    """Runs the bridge of one box until all boxes' jobs are over."""
    try:
        import torch.distributed
    except ImportError:
        sys.exit("ps_shm.bridge: it needs PyTorch, whose torch.distributed carries its bytes: pip install torch")
    if not torch.distributed.is_available():
        sys.exit("ps_shm.bridge: this build of PyTorch has no torch.distributed")
    from ._options import parse
    from ._rounds import run

    sys.exit(run(parse(sys.argv[1:])))


main()

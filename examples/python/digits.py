"""The UCI digits that lie in tools/data: 8 x 8 pixels, ten classes."""

import pathlib

import numpy
import torch

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tools" / "data"


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images from 0 to 1, and labels, of `train` or `test`: files of the IDX format."""

    def read(kind: str) -> torch.Tensor:
        data = (FOLDER / f"digits-{part}-{kind}-ubyte").read_bytes()
        shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
        return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy())

    images = read("images.idx3").float()
    return images / images.max(), read("labels.idx1").long()


def model() -> torch.nn.Sequential:
    """A perceptron of one hidden layer."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )


def accuracy(trained: torch.nn.Module) -> float:
    """The share of the test images that it names rightly."""
    images, labels = load("test")
    with torch.no_grad():
        return float((trained(images).argmax(1) == labels).float().mean())

"""Publications as context managers."""

from . import _core
from ._closing import Closing
from ._core import Generation


class Publisher(_core.Publisher, Closing):
    """Gives a bundle of tensors to any number of subscribers, generation by generation, without a ps.

    publisher = Publisher("policy", {"w": w, "b": b})
    publisher.publish({"w": w, "b": b}, step)
    """


class Subscriber(_core.Subscriber, Closing):
    """Reads what a publisher publishes: whole generations, where they lie.

    subscriber = Subscriber("policy")
    generation = subscriber.read(newer_than=0)
    w = generation["w"]
    """


__all__ = ["Generation", "Publisher", "Subscriber"]

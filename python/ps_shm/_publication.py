"""Publisher and Subscriber as context managers."""

import asyncio
import math
import time
from typing import Optional

from . import _core
from ._closing import Closing, closed_at_exit
from ._core import Generation, NewGeneration, Reader


@closed_at_exit
class Publisher(_core.Publisher, Closing):
    """Publishes a set of named tensors, generation by generation, for any number of subscribers. No server is needed.

    A generation becomes visible as a whole: no subscriber ever sees tensors of two generations. The publisher never
    waits for a subscriber, unless `busy_wait` asks for it.

        publisher = ps_shm.Publisher("policy", {"w": w, "b": b})     # names, shapes and dtypes of the tensors
        publisher.publish({"w": w, "b": b}, step=1)                  # the first generation
        publisher.publish({"w": w}, step=2)                          # "b" is unchanged
        with publisher.begin(step=3) as generation:                  # tensor by tensor
            generation.write("w", w)
        publisher.close()

    Args:
        name: the name of the publication. There is one publisher at a time. If the previous one has died or left, this
            one takes over the publication, and generations are numbered on.
        tensors: an array for each tensor, of which only shape and dtype are used, or a pair of these, such as
            ("bfloat16", (512, 512)).
        subscribers: the largest number of subscribers at one time.
        records: the number of generations that the publication can hold at one time. With 2 * subscribers + 2 or more,
            publish() always finds a free record. 0: as many as fit into 256 MiB, at least four and at most that number.
        dtype: "bfloat16": float32 tensors are published in this type, rounded to nearest. publish() and write() take
            float32 arrays for them. Empty: every tensor is published in its own type.
        populate: give all records their memory at once, so that the first generations are as fast as later ones.
        group: the Unix group that may use the publication. Empty: only this user.
        wait: how long to wait for another publisher of that name to end, in seconds.
        busy_wait: how long publish() waits if subscribers hold all records, in seconds. 0: it returns None at once.
        writer: with `slices`, which of the writers this process is.
        slices: if several processes write each generation together, for each of them its slices of the tensors, such as
            {"w": numpy.s_[0:128, :]}. Together they have each element once, and all writers give the same. Each calls
            publish() with its slices and the same step; there is one generation, without anybody having all of it.

    Raises:
        Error: the publication has another publisher after `wait` seconds, or /dev/shm is full.
    """


@closed_at_exit
class Subscriber(_core.Subscriber, Closing):
    """Reads the newest generation of a publication, in shared memory and without a copy.

    A generation stays unchanged for as long as the Generation object, or an array from it, exists. A subscriber can
    hold at most two generations at a time.

        subscriber = ps_shm.Subscriber("policy")
        generation = subscriber.read()                           # waits for the first one
        w = generation["w"]                                      # a read-only array
        newer = subscriber.try_read(generation.number)           # None if there is no newer one

    Args:
        name: the name of the publication.
        group: the Unix group that may use the publication. Empty: only this user's publications are accepted.
        wait: how long to wait for the publication to exist, in seconds.

    Raises:
        Timeout: the publication did not appear within `wait` seconds.
    """

    async def read_async(self, newer_than: int = 0, *, timeout: Optional[float] = 60.0) -> Generation:
        """Returns the newest generation as soon as its number is above `newer_than`, as read() does, for asyncio.

            generation = await subscriber.read_async()

        It looks every 2 ms, and can be cancelled.

        Args:
            newer_than: the number of a generation, such as the one read last. 0: any generation.
            timeout: how long to wait, in seconds.

        Raises:
            Timeout: there was no such generation in time.
            PublisherGone: there is no such generation and no live publisher.
            Error: two generations are held already.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            is_published = self.published  # before the look: what it publishes last is seen
            generation = self.try_read(newer_than)
            if generation is not None:
                return generation
            if not is_published:
                raise _core.PublisherGone(f"{self!r} waits for a generation, and nobody publishes")
            if time.monotonic() >= until:
                raise _core.Timeout(f"{self!r} has got no newer generation within {timeout} s")
            await asyncio.sleep(0.002)


__all__ = ["Generation", "NewGeneration", "Publisher", "Reader", "Subscriber"]

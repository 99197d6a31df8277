"""The universal scalability law, fitted: N. J. Gunther, "A General Theory of Computational Scalability Based on Rational
Functions", arXiv:0808.1431, equation 5.

    rate(N) = rate(1) * N / (1 + contention * (N - 1) + coherence * N * (N - 1))

Contention is the share of the work that happens one after the other. Coherence is what each pair of workers costs.
"""

import itertools
import math
import random
import statistics
import typing

import numpy

ENOUGH = 0.1  # of one worker's rate: a worker that adds less does not pay
MOST = 1 << 12  # workers: further nothing is foretold
DRAWS, SHARE = 400, 0.9  # of intervals


class Law(typing.NamedTuple):
    one: float  # the rate of one worker
    contention: float
    coherence: float
    error: float  # the greatest distance of a measured rate from the law, as a share of the law's

    def rate(self, workers):
        return self.one * workers / (1 + self.contention * (workers - 1) + self.coherence * workers * (workers - 1))

    def pays_up_to(self):
        """The most workers of which the last one adds a tenth of one worker's rate; None: more than MOST."""
        for workers in range(1, MOST):
            if self.rate(workers + 1) - self.rate(workers) < ENOUGH * self.one:
                return workers
        return None


def fit(rates):
    """The law of {workers: rate} with the least squares of relative errors, none of its shares below 0.

    None where fewer than two numbers of workers were measured. Two say nothing of coherence, which is 0 then.
    """
    workers = numpy.array(sorted(rates), dtype=float)
    if len(workers) < 2:
        return None
    found = numpy.array([rates[int(count)] for count in workers])
    # workers / rate is linear: (1 + contention * (N - 1) + coherence * N * (N - 1)) / rate(1)
    columns = numpy.stack([numpy.ones_like(workers), workers - 1, workers * (workers - 1)], axis=1)
    scale = found / workers  # each row's error is one of its rate, then
    best, least = None, math.inf
    for free in itertools.chain.from_iterable(itertools.combinations((1, 2), size) for size in (2, 1, 0)):
        used = [0, *free]
        if len(used) > len(workers) or (len(workers) == 2 and 2 in free):
            continue
        solved, *_ = numpy.linalg.lstsq(columns[:, used] * scale[:, None], numpy.ones_like(workers), rcond=None)
        terms = numpy.zeros(3)
        terms[used] = solved
        errors = columns @ terms * scale - 1
        if terms[0] > 0 and terms.min() >= 0 and errors @ errors < least:
            best, least = terms, errors @ errors
    law = Law(1 / best[0], best[1] / best[0], best[2] / best[0], 0.0)
    return law._replace(error=max(abs(rate / law.rate(count) - 1) for count, rate in rates.items()))


def interval(rounds, figure):
    """(low, high) of figure(law), which hold 90 % of the laws that the medians of resampled rounds give: the bootstrap.

    `rounds`: {workers: [rates]}. None where a number of workers was measured once, or no law can be fitted.
    """
    if len(rounds) < 2 or min(map(len, rounds.values())) < 2:
        return None
    generator = random.Random(1)
    figures = []
    for _ in range(DRAWS):
        medians = {count: statistics.median(generator.choices(rates, k=len(rates))) for count, rates in rounds.items()}
        figures.append(figure(fit(medians)))
    figures.sort()
    return figures[int(DRAWS * (1 - SHARE) / 2)], figures[int(DRAWS * (1 + SHARE) / 2) - 1]

"""Bridges that are killed and stopped, and boxes that are lost, at random, for some minutes, with exact counts."""
import os
import random
import signal

import numpy
import pytest
from boxes import Boxes

import ps_shm

SECONDS = float(os.environ.get("PS_SHM_STORM_SECONDS", "150"))  # of each case


def own_column(box, number, name, size):
    """Each box adds 1 to a column of its own, which says how many of its pushes count there, and to the last one."""
    gradient = numpy.zeros((size // 4, 4), "float32")
    gradient[:, [box.number, 3]] = 1
    return gradient.reshape(-1)


def own_values(box):
    return ps_shm.View(box.job).values("v").reshape(-1, 4)[:, box.number].copy()


@pytest.mark.parametrize("mode, settings", [("async", {"fragments": 2}), ("sync", {})])
def test_counts_are_exact_in_a_storm(job, tmp_path, mode, settings):
    seed = int(os.environ.get("PS_SHM_STORM_SEED", "0")) or random.randrange(1, 1 << 30)
    draw = random.Random(seed)
    print(f"PS_SHM_STORM_SEED={seed}")
    with Boxes(job, tmp_path, mode=mode, variables={"v": (6000, "versioned")}, gradient=own_column, stores=2, seconds=0.5,
               timeout=5, restarts=True, **settings) as boxes:
        boxes.start()
        counted = [(numpy.zeros(1500, "float32"), 0)] * 3  # for each box: its column, when its job had made so many pushes
        events = dict.fromkeys(("killed", "stopped", "lost"), 0)
        begin = os.times().elapsed
        while os.times().elapsed < begin + SECONDS:
            box, event = draw.choice(boxes.all), draw.choices(list(events), (6, 1, 2))[0]
            # A box is lost while the others are a majority with their states: after a round of all.
            if event == "lost":
                boxes.after_rounds(1)
            events[event] += 1
            if event == "stopped":
                os.kill(box.bridge.pid, signal.SIGSTOP)
                boxes.after_rounds(1, [other for other in boxes if other is not box])
                os.kill(box.bridge.pid, signal.SIGCONT)
            elif event == "killed":
                box.kill_bridge()
                box.start_bridge()
            else:
                box.kill_bridge()
                box.end_job()
                box._begins = False  # what a job does before it has the anchor does not count
                box.start_job()
                box.start_bridge()
                boxes.after_rounds(1)
                column, pushes = own_values(box), sum(box.pushes)
                boxes.after_rounds(1)
                assert (own_values(box) == column).all() and column.max() <= pushes
                counted[box.number] = (column, pushes)
                box.begin()
            if draw.random() < 0.5:
                boxes.after_rounds(draw.choice([0, 1, 2]))
        boxes.after_rounds(3)
        anchors = boxes.end()
        boxes.check_bits()
        print(mode, events, boxes[0].last_round(), "rounds", [sum(box.pushes) for box in boxes], "pushes")
        own = numpy.stack([column + (sum(box.pushes) - before) for box, (column, before) in zip(boxes, counted)], 1)
        for anchor in anchors:
            columns = anchor["v"].reshape(-1, 4)
            assert (columns[:, :3] == own).all() and (columns[:, 3] == own.sum(1)).all()

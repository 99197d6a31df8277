"""Bridges between boxes whose links are slow, or cut."""
from boxes import Boxes
from conftest import wait_until
from network import Network

MEGABITS = 40


def test_a_slow_or_cut_link_holds_up_no_worker(job, tmp_path):
    sizes = {"v": (200_000, "versioned")}
    with Network(3, f"{MEGABITS}mbit") as network, Boxes(
        job, tmp_path, variables=sizes, interface="eth0", timeout=6, seconds=1, every=100_000
    ) as boxes:
        for box in boxes:
            box.start_in(network)
        boxes.begin()
        boxes.after_rounds(3)
        rounds = [one for one in boxes[0].rounds() if one["bytes"]]
        assert rounds
        for one in rounds:
            assert one["bytes"] == 2 * 2 * 196 * 4096 // 3 and one["summed"] > 0.9 * 8e-6 * one["bytes"] / MEGABITS
        # Two make rounds without the third, whose job trains on.
        network.cut(2)
        boxes.after_rounds(2, boxes.all[:2])
        pushes = sum(boxes[2].pushes)
        wait_until(lambda: sum(boxes[2].pushes) > pushes + 20, "steps of the box that is cut off")
        assert boxes[2].last_round() < boxes[0].last_round()
        network.mend(2)
        boxes.after_rounds(2)
        boxes.check(boxes.end())

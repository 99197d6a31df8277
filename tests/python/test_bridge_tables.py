"""Tables by key of jobs whose bridges exchange them, over loopback."""
import collections
import contextlib
import json
import signal
import subprocess

import numpy
import pytest
from boxes import TOOLS, Boxes, BoxesHere, ThreadGroup, together
from conftest import read_line, wait_until

import ps_shm
from ps_shm.bridge import _tables

EXACT = {"initial_range": 0.0, "evict": "none"}  # sums of ones stay exact


@pytest.mark.parametrize("count, mode, variables", [(2, "async", {}), (3, "ssp", None)])
def test_each_push_is_counted_once(job, tmp_path, count, mode, variables):
    tables = {"t": ((4, 2000), EXACT), "u": ((1030, 1000), EXACT)}
    with Boxes(job, tmp_path, count=count, mode=mode, workers=2, variables=variables, tables=tables) as boxes:
        boxes.start()
        boxes.after_rounds(4)
        anchors = boxes.end()
        boxes.check(anchors)
        for name in tables:
            boxes.check_rows(anchors, name)


def test_a_job_may_end_at_any_moment_of_a_round(job, tmp_path):
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Boxes(f"{job}-{number}", folder, count=2, every=1, seconds=0.05, tables={"t": ((4, 2000), EXACT)}) as boxes:
            boxes.start()
            boxes.after_rounds(1)
            anchors = boxes.end()
            boxes.check(anchors)
            boxes.check_rows(anchors, "t")


@pytest.mark.parametrize("number", [1, 0])
def test_a_bridge_may_be_killed_at_each_point_of_its_return_and_of_a_round(job, tmp_path, number):
    tables = {"t": ((4, 2000), EXACT), "u": ((2, 2000), EXACT)}
    with Boxes(job, tmp_path, timeout=5, variables={"c": (3, "versioned")}, tables=tables, restarts=True) as boxes:
        boxes.start()
        assert boxes.kill_at_each_point(boxes[number]) > 25
        anchors = boxes.end()
        boxes.check(anchors)
        for name in tables:
            boxes.check_rows(anchors, name)


def test_a_bridge_may_be_killed_between_the_tables_of_a_change(job, tmp_path):
    def some_new_keys(box, worker, number, name):  # of rows that have yet to get what the anchor has
        return numpy.array([number // 10, 1_000_000 + box.number, 2_000_000], numpy.uint64)

    tables = {"t": ((4, 100_000), EXACT), "u": ((2, 100_000), EXACT)}
    with Boxes(job, tmp_path, count=2, timeout=5, variables={}, tables=tables, keys=some_new_keys) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        points = [(f"{when} {what}", number) for what, most in (("changed_since", 2), ("give", 4), ("read", 1), ("accept", 1),
                                                                ("step", 2)) for when in ("before", "behind")
                  for number in range(1, most + 1)]  # fmt: skip
        for point in points:
            boxes[1].start_bridge(dies_at=point)
            wait_until(lambda: boxes[1].bridge.exitcode is not None, f"the death {point}")
            assert boxes[1].bridge.exitcode == -signal.SIGKILL, boxes[1].text()
        boxes[1].start_bridge()
        boxes.after_rounds(1)
        anchors = boxes.end()
        for name in tables:
            boxes.check_rows(anchors, name)
        boxes.check_bits()


def test_rows_that_are_evicted_all_the_time_never_count_twice(job, tmp_path):
    """What an eviction takes with it is lost, and nothing else can be: all that is in an anchor was pushed."""
    tables = {"t": ((4, 64), {"initial_range": 0.0, "evict": "lru"})}
    with Boxes(job, tmp_path, workers=2, variables={}, tables=tables) as boxes:
        boxes.start()
        boxes.after_rounds(4)
        anchors = boxes.end()
        pushes = boxes.pushes_by_key("t")
        for anchor in anchors:
            assert (anchor["t.keys"] == anchors[0]["t.keys"]).all() and (anchor["t.rows"] == anchors[0]["t.rows"]).all()
        rows = dict(zip(anchors[0]["t.keys"].tolist(), anchors[0]["t.rows"][:, 0].tolist()))
        assert all(0 <= value <= pushes[key] for key, value in rows.items())
        assert sum(rows.values()) > 0
        boxes.check_bits()


class Twins(BoxesHere):
    """Such jobs with a table, and perhaps a variable beside it, to which each push adds its value, too."""

    def __init__(self, job, *settings, count=2, row_size=2, max_rows=100, has_variable=False, **table):
        super().__init__(job, count, optimizer="add", lr=1.0)
        self.settings, self.tables, self.variables = settings, [], []
        self.pushed = collections.Counter()  # by key, and in all
        for worker in self.workers:
            self.tables.append(worker.table("t", row_size, max_rows, **{"initial_range": 0.0, "evict": "none", **table}))
            if has_variable:
                self.variables.append(worker.variable("v", numpy.zeros(1, "float32")))
            worker.step()

    def join(self):
        if not self.bridges:
            self.make(*self.settings)
        super().join()

    def push(self, box, keys, value=1.0):
        keys = numpy.array(keys, numpy.uint64)
        self.pushed.update(dict.fromkeys(keys.tolist(), value) | {"v": value})
        if self.variables:
            self.variables[box].push(numpy.full(1, value, "float32"))
        return self.tables[box].push(keys, numpy.full((keys.size, self.tables[box].row_size), value, "float32"))

    def round(self):
        for worker in self.workers:
            worker.step()
        assert all(together([bridge.round for bridge in self.bridges]))

    def rows(self, box):
        """The first element of each row."""
        found = self.tables[box].export()
        return {int(key): float(row[0]) for key, row in zip(found.keys, found.rows)}

    def anchor(self):
        """The same of the anchor, which all boxes have alike."""
        anchors = [bridge.tables.anchors[0] for bridge in self.bridges]
        keys, rows = (anchors[0].array(which, anchors[0].count) for which in (0, 1))
        for one in anchors[1:]:
            assert (one.array(0, one.count) == keys).all() and (one.array(1, one.count) == rows).all()
        return {int(key): float(row[0]) for key, row in zip(keys, rows)}

    def variable(self):
        """The variable in the anchor of each bridge."""
        return [float(bridge.state.anchor[0]) for bridge in self.bridges]


def end_before_rows(bridge):
    """The job will end when its variables have the next change, and its rows do not."""

    def end():
        raise ps_shm.JobFinished("over")

    bridge.tables.give, bridge.box.wait_for_workers = end, lambda: None


def test_rows_get_to_the_other_boxes(job):
    with Twins(job, "--combine", "sum") as twins:
        twins.push(0, [1], 5)
        twins.push(1, [1, 2], 100)
        twins.join()  # box 0's rows are the first anchor
        assert twins.anchor() == {1: 5} and twins.rows(0) == {1: 5} and twins.rows(1) == {1: 5, 2: 0}
        twins.push(0, [1, 3])
        twins.push(1, [2, 3], 10)
        twins.round()
        assert twins.rows(0) == twins.rows(1) == twins.anchor() == {1: 6, 2: 10, 3: 11}
        sent = [bridge.header.due for bridge in twins.bridges]
        twins.push(1, [3])
        twins.round()
        assert sent == [(3,)] * 2 and [bridge.header.due for bridge in twins.bridges] == [(1,)] * 2
        assert twins.rows(0) == twins.rows(1) == twins.anchor() == {1: 6, 2: 10, 3: 12}


def test_a_mean_is_over_the_boxes_that_changed_an_element(job):
    with Twins(job, "--outer", "nesterov", count=3) as twins:
        twins.join()
        twins.push(0, [1, 2], 3)
        twins.push(1, [2], 5)
        for table, row in zip(twins.tables, ([3, 0], [0, 5])):  # other elements of one row
            table.push(numpy.array([3], numpy.uint64), numpy.array([row], "float32"))
        twins.round()
        assert twins.rows(2) == {1: 3, 2: 4, 3: 3}


def test_an_evicted_row_comes_back_as_the_anchor_and_what_it_has_got_since(job):
    with Twins(job, "--combine", "sum", initial_range=0.5) as twins:
        keys = numpy.array([1], numpy.uint64)
        begun = float(twins.tables[0].pull(keys)[0][0, 0])

        def row(value):
            return pytest.approx({1: begun + value}, abs=1e-5)

        twins.join()
        twins.push(0, [1], 8)
        twins.round()
        assert twins.rows(1) == row(8)
        twins.tables[1].evict(keys)
        twins.round()
        assert twins.rows(1) == {} and twins.rows(0) == row(8)
        twins.push(1, [1], 16)
        assert twins.rows(1) == row(16)
        twins.round()
        assert all(one == row(24) for one in (twins.rows(0), twins.rows(1), twins.anchor()))
        twins.push(1, [1], 32)  # which no round has counted when the row is evicted: it is lost
        twins.tables[1].evict(keys)
        twins.push(1, [1], 64)
        twins.round()
        assert all(one == row(88) for one in (twins.rows(0), twins.rows(1), twins.anchor()))


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_row_may_be_evicted_between_its_cut_and_the_change(job, is_made_again):
    with Twins(job, "--combine", "sum") as twins:
        twins.join()
        twins.push(0, [1, 2], 1)
        twins.round()
        for box in range(2):
            twins.push(box, [1], 10)
        bridge = twins.bridges[0]
        give = bridge.tables.give

        def evict_and_give():
            twins.tables[0].evict(numpy.array([1, 2], numpy.uint64))
            if is_made_again:
                twins.push(0, [1, 2], 100)
            give()

        bridge.tables.give = evict_and_give
        twins.round()
        bridge.tables.give = give
        more = 100 if is_made_again else 0
        assert twins.anchor() == {1: 21, 2: 1}
        assert twins.rows(0) == ({1: 121, 2: 100} if is_made_again else {1: 21})
        twins.round()
        assert twins.anchor() == {1: 21 + more, 2: 1 + more} and twins.rows(1) == twins.anchor()
        assert twins.rows(0) == ({1: 121, 2: 101} if is_made_again else {1: 21})


def test_no_row_is_evicted_for_one_of_another_box(job):
    with Twins(job, "--combine", "sum", max_rows=64, evict="lru") as twins:
        twins.join()
        twins.push(0, range(64))
        twins.push(1, range(60, 124))
        twins.round()
        assert len(twins.anchor()) == 124
        assert twins.rows(0) == {key: 1 + (key >= 60) for key in range(64)}
        assert twins.rows(1) == {key: 1 + (key < 64) for key in range(60, 124)}
        twins.push(0, [100])  # other rows make room for it
        twins.round()
        assert twins.rows(0)[100] == twins.rows(1)[100] == 2


def test_keys_beyond_the_most_are_left_alone(job, capfd):
    with Twins(job, "--combine", "sum", "--table-keys", "3") as twins:
        twins.join()
        twins.push(0, [10, 30])
        twins.push(1, [20, 40])
        twins.round()
        assert twins.anchor() == {10: 1, 20: 1, 30: 1}
        assert twins.rows(0) == {10: 1, 20: 1, 30: 1} and twins.rows(1) == {10: 1, 20: 1, 30: 1, 40: 1}
        twins.push(1, [40, 10])
        twins.push(0, [5])
        twins.round()
        assert twins.anchor() == {10: 2, 20: 1, 30: 1} and twins.rows(1)[40] == 2 and twins.rows(0)[5] == 1

        twins.push(0, range(50, 60))  # more than any cut may have
        twins.round()
        assert sorted(twins.anchor()) == [10, 20, 30]

        def inspect(command, *options):
            done = subprocess.run([TOOLS / "inspect_shm", command, *options], check=True, capture_output=True, text=True)
            return done.stdout

        of = ("--job", twins.jobs[1])
        assert json.loads(inspect("show", *of, "--json"))["bridge"]["tables"] == [
            {"name": "t", "keys": 3, "most_keys": 3, "cut_rows": 0}]
        assert "table t: 3 of at most 3 keys, 0 rows in the last cut" in inspect("show", *of)
        metrics = inspect("metrics")
        for name, value in (("keys", 3), ("most_keys", 3), ("cut_rows", 0)):
            assert f'ps_shm_bridge_table_{name}{{job="{twins.jobs[1]}",table="t"}} {value}\n' in metrics
        with subprocess.Popen([TOOLS / "inspect_shm", "watch", *of], stdout=subprocess.PIPE, text=True) as watch:
            line = read_line(watch.stdout)
            watch.kill()
        assert "! table t: the boxes exchange as many keys as --table-keys allows, and no others" in line
    assert "table 't' has more than the 3 keys that --table-keys allows" in capfd.readouterr().err


@pytest.mark.parametrize("wire, relative", [("bfloat16", 2**-8), ("int8", 1 / 127)])
def test_what_the_wire_format_loses_is_sent_later(job, wire, relative):
    with Twins(job, "--combine", "sum", "--wire", wire, row_size=8) as twins:
        twins.join()
        values = [numpy.random.default_rng(box).standard_normal((1, 8)).astype("float32") for box in range(2)]
        for table, value in zip(twins.tables, values):
            table.push(numpy.array([7], numpy.uint64), value)
        truth, errors = sum(values)[0], []
        for _ in range(8):  # no further pushes
            twins.round()
            anchor = twins.bridges[0].tables.anchors[0]
            errors.append(float(numpy.abs(anchor.array(1, 1)[0] - truth).max()))
        assert 0 < errors[0] < 4 * relative * 4 and errors[-1] < 1e-5
        twins.anchor()


def test_more_keys_than_there_may_be_leave_room_for_none(job, capfd):
    with Twins(job, "--combine", "sum", "--table-keys", "5") as twins:
        twins.join()
        twins.push(0, range(20))
        twins.push(1, range(100, 103))
        twins.round()
        assert len(twins.anchor()) == 5
        twins.push(0, range(20))
        twins.round()
        assert len(twins.anchor()) == 5
    assert "table 't' has more than the 5 keys that --table-keys allows" in capfd.readouterr().err


def test_tables_need_not_be_declared_in_the_same_order(job):
    with Twins(job, "--combine", "sum") as twins:
        made = [{name: worker.table(name, 2, 100, initial_range=0.0) for name in names}
                for worker, names in zip(twins.workers, (("a", "b"), ("b", "a")))]
        twins.join()
        made[1]["a"].push(numpy.array([7], numpy.uint64), numpy.ones((1, 2), "float32"))
        twins.round()
        assert made[0]["a"].export().keys.tolist() == [7] and made[0]["b"].export().keys.tolist() == []


def test_the_longest_ttl_and_the_largest_tables(job):
    settings = {"max_rows": 100_000_000, "row_size": 64, "ttl": 30 * 24 * 3600}
    with Twins(job, "--combine", "sum", "--wire", "int8", **settings) as twins:
        twins.join()
        twins.push(0, [1], 5)
        twins.round()
        twins.round()
        assert twins.rows(1) == twins.anchor() == {1: 5}
        for bridge in twins.bridges:
            bridge.state.remove()
        for keys in (10**12, 10**18):
            with pytest.raises(ps_shm.Error, match="allow fewer keys"):
                twins.make("--table-keys", str(keys))


@pytest.mark.parametrize("rule", ["rowwise_adagrad", "ftrl"])
def test_rows_are_healed_with_the_state_of_their_optimizer(job, rule):
    with Twins(job, "--combine", "sum", "--heal", rule=rule) as twins:
        twins.join()
        twins.push(0, [1])
        twins.round()
        twins.push(0, [1], numpy.nan)
        twins.round()
        before = twins.anchor()[1]
        twins.push(0, [1])
        twins.round()
        assert numpy.isfinite(twins.rows(0)[1]) and twins.anchor()[1] != before
        assert [bridge.header.dropped_steps for bridge in twins.bridges] == [1, 0]


def test_rows_that_are_not_finite_do_not_cross_and_are_healed(job):
    with Twins(job, "--combine", "sum", "--heal") as twins:
        twins.join()
        twins.push(0, [1, 2])
        twins.push(1, [1])
        twins.round()
        twins.push(0, [2], numpy.nan)
        twins.push(1, [2])
        twins.round()
        twins.round()
        assert twins.rows(0) == twins.rows(1) == twins.anchor() == {1: 2, 2: 2}


def test_a_bridge_that_begins_again_goes_on(job):
    with Twins(job, "--combine", "sum") as twins:
        twins.join()
        for box in range(2):
            twins.push(box, [1, 2 + box])
        twins.round()
        twins.bridges.clear()
        twins.push(0, [1, 3])
        twins.join()
        assert twins.anchor() == {1: 2, 2: 1, 3: 1}
        twins.round()
        assert twins.rows(0) == twins.rows(1) == twins.anchor() == {1: 3, 2: 1, 3: 2}


def test_a_box_that_was_away_takes_what_it_lacks(job):
    """Its last cut was not counted, or was: it died before it had the sum."""
    for is_counted in (False, True):
        with Twins(f"{job}-{is_counted:d}", "--combine", "sum", count=3) as twins:
            twins.join()
            twins.push(0, [1, 2])
            twins.round()
            twins.push(2, [2, 3, 8], 10)  # nobody pushes 8 again
            everybody, away = twins.bridges, twins.bridges[2]
            twins.workers[2].step()
            if not is_counted:
                assert away.cut(False) == (1.0, True) and away.header.phase == "cut"
            if is_counted:  # it has sent its cut, and died before the vote
                away._vote = lambda: (_ for _ in ()).throw(SystemExit("dead"))
                away.commit = lambda: None
                for worker in twins.workers:
                    worker.step()

                def go(bridge):
                    with contextlib.suppress(SystemExit):
                        bridge.round()

                for bridge in everybody[:2]:
                    bridge._vote = lambda: None
                together([lambda bridge=bridge: go(bridge) for bridge in everybody])
                for bridge in everybody[:2]:
                    del bridge._vote
                away.state.set(ready=None)  # as if it had died before it had the sum
            # The others make a round without it.
            groups = ThreadGroup.make(2)
            for bridge, group in zip(everybody, groups):
                bridge.group = group
            for box in range(2):
                twins.push(box, [2, 4 + box], 100)
            for worker in twins.workers[:2]:
                worker.step()
            together([bridge.join for bridge in everybody[:2]])
            together([bridge.round for bridge in everybody[:2]])
            twins.push(2, [3, 9], 1000)
            twins.bridges = []
            del everybody, away, bridge
            twins.join()
            twins.round()
            twins.round()
            assert twins.anchor() == {1: 1, 2: 211, 3: 1010, 4: 100, 5: 100, 8: 10, 9: 1000}
            for box in range(3):
                assert twins.rows(box) == twins.anchor()


def dead(*_):
    raise RuntimeError("dead")


def round_until_dead(bridge):
    with contextlib.suppress(RuntimeError):
        bridge.round()


def with_two_rounds_to_catch_up(twins):
    """Box 2 died when it was to go to round 2, which the others have made. They died in the vote of round 3, which has other
    keys. All bridges are gone."""
    twins.join()
    for box in range(3):
        twins.push(box, [1])
    twins.round()
    twins.push(0, [1], 10)
    twins.bridges[2].commit = dead
    for worker in twins.workers:
        worker.step()

    together([lambda bridge=bridge: round_until_dead(bridge) for bridge in twins.bridges])
    others = twins.bridges[:2]
    for bridge, group in zip(others, ThreadGroup.make(2)):
        bridge.group = group
    twins.push(0, [2])
    together([bridge.join for bridge in others])
    for bridge in others:
        bridge._vote = dead
    for worker in twins.workers:
        worker.step()
    together([lambda bridge=bridge: round_until_dead(bridge) for bridge in others])
    assert [bridge.header.round for bridge in twins.bridges] == [2, 2, 1]
    assert [bridge.header.ready.round for bridge in twins.bridges] == [3, 3, 2]
    twins.bridges = []


def test_rows_get_what_one_round_has_made_before_a_bridge_gets_the_sum_of_another(job):
    with Twins(job, "--combine", "sum", count=3) as twins:
        with_two_rounds_to_catch_up(twins)
        twins.join()
        assert twins.anchor() == {1: 13, 2: 1}
        for box in range(3):
            assert twins.rows(box) == twins.anchor()


def test_a_job_that_ends_before_another_round_has_its_last_cut_by_then(job):
    with Twins(job, "--combine", "sum", count=3, has_variable=True) as twins:
        with_two_rounds_to_catch_up(twins)
        twins.push(2, [1, 3], 100)
        twins.make(*twins.settings)
        end_before_rows(twins.bridges[2])
        twins.join()
        assert twins.anchor() == {1: 13, 2: 1} and twins.variable() == [14] * 3
        twins.round()
        assert twins.anchor() == {1: 113, 2: 1, 3: 100} and twins.rows(0) == twins.anchor()
        assert twins.variable() == [114] * 3


def test_a_job_that_ends_between_the_change_of_its_variables_and_that_of_its_rows_counts_nothing_twice(job):
    with Twins(job, "--combine", "sum", has_variable=True) as twins:
        twins.join()
        twins.push(0, [1], 1)
        twins.push(1, [1, 2], 10)
        end_before_rows(twins.bridges[1])
        twins.round()
        assert twins.anchor() == {1: 11, 2: 10} and twins.variable() == [11] * 2
        twins.push(0, [1], 100)
        twins.round()
        assert twins.anchor() == {1: 111, 2: 10} and twins.variable() == [111] * 2


def end_at_look(box, number):
    """The job will end when its bridge is told of it or looks for it for the so-manyeth time."""

    class Ending(type(box)):
        left = number

        def _look(self):
            self.left -= 1
            self._has_ended = self._has_ended or self.left < 0

        @property
        def is_over(self):
            self._look()
            return super().is_over

        def as_guest(self, change):
            self._look()
            return None if self._has_ended else super().as_guest(change)

        def wait_for_workers(self):  # its worker here lives on
            pass

    box.__class__ = Ending


def test_a_job_may_end_wherever_its_bridge_can_be_told_of_it(job):
    for point in range(1000):
        with Twins(f"{job}-{point}", "--combine", "sum", count=3, has_variable=True) as twins:
            with_two_rounds_to_catch_up(twins)
            twins.push(2, [1, 3], 100)
            twins.make(*twins.settings)
            box = twins.bridges[2].box
            end_at_look(box, point)
            twins.join()
            for number in range(5):
                for k in range(2 + (not box._has_ended)):
                    if number < 3:
                        twins.push(k, [1, 4 + k, 10 + number], 1000)
                twins.round()
            pushed = dict(twins.pushed)
            assert twins.variable() == [pushed.pop("v")] * 3, point
            assert twins.anchor() == pushed, point
            if not box._has_ended:
                break
    assert point > 20


def test_a_key_whose_row_is_evicted_and_made_again_is_in_a_cut_once(job, monkeypatch):
    changed_since = _tables.GuestTable.changed_since
    with Twins(job, "--combine", "sum") as twins:
        twins.join()
        twins.push(0, [1, 2])
        twins.round()
        twins.push(0, [1, 2], 10)

        def with_both_rows(table, since):  # as a walk over the rows that meets the old one, and then the new one
            (keys, rows, marks), version = changed_since(table, since)
            if not (rows[keys == 1] == 11).any():  # of box 1
                return (keys, rows, marks), version
            monkeypatch.undo()
            twins.tables[0].evict(numpy.array([1], numpy.uint64))
            twins.push(0, [1], 100)
            again, _ = changed_since(table, since)
            new = again[0] == 1
            found = zip((keys, rows, marks), again)
            return tuple(numpy.concatenate([old, more[new]]) for old, more in found), version

        monkeypatch.setattr(_tables.GuestTable, "changed_since", with_both_rows)
        twins.round()
        twins.round()
        assert twins.anchor() == {1: 111, 2: 11} and twins.rows(0) == twins.rows(1) == twins.anchor()


def with_an_open_cut(twins):
    """Box 2 has a cut of key 1. The others died in the vote of a round without it. All bridges are gone."""
    twins.join()
    twins.push(2, [1])
    twins.round()
    twins.push(2, [1], 10)
    twins.push(0, [2])
    for worker in twins.workers:
        worker.step()
    assert twins.bridges[2].cut(False) == (1.0, True)
    others = twins.bridges[:2]
    for bridge, group in zip(others, ThreadGroup.make(2)):
        bridge.group, bridge._vote = group, dead

    together([bridge.join for bridge in others])
    together([lambda bridge=bridge: round_until_dead(bridge) for bridge in others])
    assert [bridge.header.ready is not None for bridge in twins.bridges] == [True, True, False]
    twins.bridges = []


def test_a_cut_that_another_round_has_not_counted_is_made_again(job):
    with Twins(job, "--combine", "sum", count=3) as twins:
        with_an_open_cut(twins)
        twins.join()
        assert twins.anchor() == {1: 1, 2: 1}
        twins.round()
        assert twins.anchor() == {1: 11, 2: 1} and twins.rows(0) == twins.rows(2) == twins.anchor()


def test_a_cut_has_no_row_in_doubt(job, monkeypatch):
    changed_since = _tables.GuestTable.changed_since
    with Twins(job, "--combine", "sum") as twins:
        twins.join()
        twins.push(0, [1, 2])
        twins.round()
        twins.push(0, [1, 2], 10)

        def with_a_torn_row(table, since):  # as a bridge leaves it that is killed while it changes the row
            (keys, rows, marks), version = changed_since(table, since)
            if (rows[keys == 1] == 11).any():  # of box 0
                rows[keys == 1], marks[keys == 1] = 7, marks[keys == 1] | 1
            return (keys, rows, marks), version

        monkeypatch.setattr(_tables.GuestTable, "changed_since", with_a_torn_row)
        twins.round()
        assert twins.anchor() == {1: 11, 2: 11} and twins.rows(0) == twins.rows(1) == twins.anchor()


def test_tables_that_differ_are_refused_and_rows_of_bfloat16_are_left_alone(job, capfd):
    with Twins(job, "--combine", "sum") as twins:
        twins.workers[0].table("half", 2, 100, dtype="bfloat16")
        twins.make(*twins.settings)
        assert "table half" in capfd.readouterr().err
        twins.join()
    with Twins(f"{job}-x", "--combine", "sum", max_rows=100) as twins:
        other = twins.workers[1].table("more", 2, 100)
        assert other.row_size == 2
        twins.make(*twins.settings)
        said = []

        def join(bridge):
            try:
                bridge.join()
            except BaseException as error:
                said.append((type(error).__name__, str(error)))

        together([lambda bridge=bridge: join(bridge) for bridge in twins.bridges])
        assert sorted(kind for kind, _ in said) == ["BrokenError", "SystemExit"]
        assert "the jobs of boxes 0 and 1 differ in variable 'table more'" in capfd.readouterr().err

"""Bridges between boxes: jobs beside each other on this machine, each with a bridge, over loopback."""
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import types

import numpy
import pytest
from boxes import TOOLS, Box, Boxes, BoxesHere, ThreadGroup, free_port, together
from conftest import PATIENCE, read_line, wait_until

import ps_shm
from ps_shm.bridge import _box, _group, _options, _state


@pytest.mark.parametrize("mode", ["async", "ssp", "sync"])
def test_each_push_is_counted_once(job, tmp_path, mode):
    rows = "versioned" if mode == "sync" else "inplace"
    variables = {"c": (3, "versioned"), "rows": (5000, rows), "file": (2500, "versioned")}  # a name that numpy.savez() refuses
    with Boxes(job, tmp_path, mode=mode, workers=2, variables=variables) as boxes:
        boxes.start()
        boxes.after_rounds(3)
        boxes.check(boxes.end())


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_job_may_end_at_any_moment_of_a_round(job, tmp_path, mode):
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Boxes(f"{job}-{number}", folder, count=2, mode=mode, every=1, seconds=0.05) as boxes:
            boxes.start()
            boxes.after_rounds(1)
            boxes.check(boxes.end())


def test_eight_boxes(job, tmp_path):
    with Boxes(job, tmp_path, count=8) as boxes:
        boxes.start()
        boxes.after_rounds(3)
        boxes.check(boxes.end())


def test_torchrun_starts_it(job, tmp_path):
    with Boxes(job, tmp_path, count=2) as boxes:
        port = free_port()
        for box in boxes:
            box.start_by_torchrun(port, tmp_path)
        boxes.begin()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


@pytest.mark.parametrize("mode, number, fragments", [("async", 1, 1), ("sync", 1, 2), ("async", 0, 2)])
def test_a_bridge_may_be_killed_at_each_point_of_its_return_and_of_a_round(job, tmp_path, mode, number, fragments):
    variables = {"c": (3, "versioned"), "d": (5000, "versioned" if mode == "sync" else "inplace")}
    with Boxes(job, tmp_path, mode=mode, timeout=5, fragments=fragments, variables=variables, restarts=True) as boxes:
        boxes.start()
        assert boxes.kill_at_each_point(boxes[number]) > 25
        boxes.check(boxes.end())


def test_the_other_boxes_go_on_without_a_bridge_and_with_less_than_half_of_them_no_round_is_made(job, tmp_path):
    with Boxes(job, tmp_path, restarts=True) as boxes:
        boxes.start()
        boxes[2].kill_bridge()
        boxes.after_rounds(2, boxes.all[:2])
        failures = boxes[0].text().count("forms a new group")
        boxes[1].kill_bridge()
        wait_until(lambda: boxes[0].text().count("forms a new group") > failures, "a failure")
        lonely, pushed = boxes[0].last_round(), sum(boxes[0].pushes)
        wait_until(lambda: sum(boxes[0].pushes) > pushed + 100, "pushes while there is no group")
        assert boxes[0].last_round() == lonely
        boxes[1].start_bridge()
        boxes[2].start_bridge()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_another_box_takes_over_the_store_of_box_0(job, tmp_path):
    with Boxes(job, tmp_path, stores=2, restarts=True) as boxes:
        boxes.start()
        boxes[0].kill_bridge()
        boxes.after_rounds(2, boxes.all[1:])
        boxes[0].start_bridge()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_a_box_that_the_others_do_not_reach_is_left_out(job, tmp_path):
    with Boxes(job, tmp_path, timeout=4, restarts=True) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        boxes[2].start_bridge(is_unreachable=True)
        wait_until(lambda: "box 2 is left out for 60 s" in boxes[0].text(), "box 2 is left out")
        boxes.after_rounds(2, boxes.all[:2])
        boxes[0].start_bridge()  # it knows nothing of this
        boxes[2].start_bridge()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_the_leader_tries_each_other_box_although_one_was_left_out_before():
    options = _options.parse(["--job", "none", "--box", "0", "--boxes", "3", "--meet", "none"])
    group = _group.Group(dataclasses.replace(options, keeps_store=False))
    group._left_out[1] = (0.0, 60.0)  # it is over
    here = {box: (0, False, box) for box in range(3)}
    suspects = []
    for _ in range(3):
        suspects.append(group._next_suspect(here))
        group.has_failed()
    assert suspects == [None, 1, 2]


def test_a_stopped_bridge_holds_up_one_round(job, tmp_path):
    with Boxes(job, tmp_path, timeout=4) as boxes:
        boxes.start()
        os.kill(boxes[2].bridge.pid, signal.SIGSTOP)
        boxes.after_rounds(2, boxes.all[:2])
        os.kill(boxes[2].bridge.pid, signal.SIGCONT)
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_a_sync_job_that_makes_no_steps_is_left_behind_and_comes_back(job, tmp_path):
    with Boxes(job, tmp_path, mode="sync") as boxes:
        boxes.start()
        boxes.after_rounds(1)
        boxes[1].hold()
        wait_until(lambda: "waits outside of the group" in boxes[1].text(), "the bridge's notice")
        boxes.after_rounds(1, [boxes[0], boxes[2]])
        boxes[1].release()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_a_new_job_in_place_of_a_lost_one_takes_the_anchor(job, tmp_path):
    with Boxes(job, tmp_path) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        lost = boxes[2]
        lost.kill_bridge()
        lost.end_job()
        lost.start_job()
        before = len(lost.text())
        lost.start_bridge()
        boxes.after_rounds(2)
        assert "took the anchor" in lost.text()[before:]
        anchors = boxes.end()
        assert all((anchors[0][name] == anchors[2][name]).all() for name in ("c", "d"))
        assert (anchors[0]["c"] >= sum(sum(box.pushes) for box in boxes.all[:2])).all()  # less what was lost with box 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_bridge_takes_up_the_job_that_is_made_again_in_place_of_its_own(job, tmp_path, number):
    with Boxes(job, tmp_path, count=2, restarts=True) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        remade = boxes[number]
        remade.end_job()
        remade._begins = False  # what it would push before it has the anchor is not counted
        before = len(remade.text())
        remade.start_job()
        wait_until(lambda: "took the anchor" in remade.text()[before:], "the anchor")
        wait_until(lambda: "group of 2" in remade.text()[before:].partition("took the anchor")[2], "the change of the job")
        assert f"job '{remade.job}' was made again" in remade.text()
        remade.begin()
        boxes.after_rounds(2)
        boxes.check(boxes.end())


def test_a_bridge_leaves_the_job_that_is_made_again_to_one_that_was_started_for_it(job, tmp_path):
    with Boxes(job, tmp_path, count=2) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        remade = boxes[1]
        first, remade.bridge = remade.bridge, None
        try:
            os.kill(first.pid, signal.SIGSTOP)
            remade.end_job()
            before = len(remade.text())
            remade.start_job()
            remade.start_bridge()
            wait_until(lambda: "joined job" in remade.text()[before:], "the second bridge")
            os.kill(first.pid, signal.SIGCONT)
            first.join(PATIENCE)
            assert first.exitcode == 3 and "has another bridge" in remade.text(), remade.text()
        finally:
            first.kill()
        boxes.after_rounds(2)
        boxes.end()


def test_a_bridge_that_waits_for_the_place_of_one_that_leaves_is_not_sent_away(monkeypatch):
    options = _options.parse(["--job", "none", "--box", "0", "--boxes", "2", "--meet", "none"])
    group, told = _group.Group(dataclasses.replace(options, keeps_store=False)), []
    group.members, group._came, group._store = [0, 1], {1: 11}, types.SimpleNamespace(get=str.encode)
    monkeypatch.setattr(group, "_waiting", lambda: {1: 22})
    monkeypatch.setattr(_group, "_put", lambda _, key, value: told.append((key, value)))
    assert not group.still_wants_another([1]) and told == []
    group.still_wants_another([])
    assert told == [("second/22", "who/11")]


@pytest.mark.parametrize("wire, relative", [("bfloat16", 2**-8), ("int8", 1 / 127)])
def test_what_the_wire_format_loses_stays_in_the_jobs(job, tmp_path, wire, relative):
    """Every hundredth element is changed by box 0 alone, by so little that int8 loses each cut of it."""
    small = slice(None, None, 100)

    def gradient(box, number, name, size):
        values = numpy.ones(size, "float32")
        values[small] = 0.0035 if box.number == 0 else 0
        return values

    with Boxes(job, tmp_path, wire=wire, variables={"d": (5000, "versioned")}, gradient=gradient) as boxes:
        boxes.start()
        boxes.after_rounds(30)
        anchors = boxes.end()
        truth = numpy.full(5000, sum(sum(box.pushes) for box in boxes), "float32")
        truth[small] = 0.0035 * sum(boxes[0].pushes)
        largest = max(one["norm"] for one in boxes[0].rounds()) / numpy.sqrt(4950)  # change of an element in a round
        for anchor in anchors:
            # Of a last cut: half of `relative` for each of the three boxes, whose last cuts may be of other rounds, and the sum.
            assert numpy.abs(anchor["d"] - truth).max() <= 2.02 * relative * largest
            assert (anchor["d"] == anchors[0]["d"]).all()
        sent = {one["bytes"] for one in boxes[0].rounds()}
        assert max(sent) <= 2 * (3 - 1) / 3 * 5 * {"bfloat16": 2048, "int8": 1028}[wire]


def test_an_element_that_one_box_changed_is_averaged_over_that_box_alone(job, tmp_path):
    """Each box pushes to rows of its own, which a mean over all boxes would shrink."""

    def own_rows(box, number, name, size):
        gradient = numpy.zeros((3, size // 3), "float32")
        gradient[box.number] = 1
        return gradient.reshape(-1)

    sizes = {"rows": (3 * 4096, "inplace")}
    with Boxes(job, tmp_path, variables=sizes, combine="mean", gradient=own_rows) as boxes:
        boxes.start()
        boxes.after_rounds(2)
        rows = boxes.end()[0]["rows"].reshape(3, 4096)
        for box in boxes:
            assert (rows[box.number] == sum(box.pushes)).all()


def test_blocks_that_no_box_has_changed_are_not_sent(job, tmp_path):
    def first_row(box, number, name, size):
        gradient = numpy.zeros(size, "float32")
        gradient[:10] = 1
        return gradient

    with Boxes(job, tmp_path, count=2, variables={"rows": (100_000, "inplace")}, gradient=first_row) as boxes:
        boxes.start()
        boxes.after_rounds(2)
        boxes.end()
        assert max(one["bytes"] for one in boxes[0].rounds()) == 4096


def test_a_round_may_exchange_a_part_of_the_model(job, tmp_path):
    with Boxes(job, tmp_path, fragments=3) as boxes:
        boxes.start()
        boxes.after_rounds(6)
        sent = {one["bytes"] for one in boxes[0].rounds()}
        assert max(sent) == 2 * 2 * 4096 * 2 // 3  # two of the six blocks
        boxes.check(boxes.end())


class Twins(BoxesHere):
    """Two such jobs with variables."""

    def __init__(self, job, variables, *settings, optimizer="add"):
        """variables(worker, box) declares them; or their initial values by name. settings: as of make()."""
        super().__init__(job, 2, optimizer=optimizer, lr=1.0)
        for box, worker in enumerate(self.workers):
            if callable(variables):
                variables(worker, box)
            else:
                worker.variables({name: numpy.asarray(values) for name, values in variables.items()})
            worker.step()
        if settings:
            self.make(*settings)

    def round(self, *pushes):
        """Each box pushes its gradients, by name, and makes a step; then a round follows."""
        for worker, gradients in zip(self.workers, pushes):
            for name, gradient in gradients.items():
                worker.variable(name).push(numpy.asarray(gradient, "float32"))
            if gradients:
                worker.step()
        assert all(together([bridge.round for bridge in self.bridges]))

    def values(self, name):
        return [ps_shm.View(job).values(name).tolist() for job in self.jobs]


def test_boxes_take_other_types_from_box_0(job):
    torch = pytest.importorskip("torch")
    half = torch.tensor([1 / 3, -7.0]).to(torch.bfloat16)

    def variables(worker, box):
        worker.variables({"w": numpy.zeros(3, "float32"), "mean": numpy.full(2, box, "float32"), "half": half * (1 + box),
                          "count": numpy.array(7 + 5 * box), "flags": numpy.array([box == 0, box == 1, True])})

    with Twins(job, variables) as twins:
        with pytest.raises(ps_shm.Error, match=f"--copy: job '{job}-0' has no variable 'none'"):
            twins.make("--copy", "w,none")
        twins.make(["--copy", "mean,count,flags,half"], ["--copy", "count,half,mean,flags"])
        twins.join()
        for number in range(2):
            twins.workers[0].variable("count").add(numpy.array(1))
            twins.round({"w": [1, 1, 1]}, {"w": [1, 1, 1]})
            assert twins.values("count") == [8 + number] * 2 and twins.values("mean") == [[0, 0]] * 2
            assert twins.values("flags") == [[True, False, True]] * 2
            assert twins.values("half") == [half.float().tolist()] * 2
            assert twins.values("w") == [[number + 1] * 3] * 2
        updates = {info.name: info.updates for info in ps_shm.View(f"{job}-1").variables()}
        assert (updates["count"], updates["flags"]) == (2, 1)  # a variable that is equal is left alone


def test_the_outer_rule_is_for_what_the_optimizer_trains(job):
    """A momentum would take a running variance below 0: a variable with the rule add gets the mean of the changes."""

    def variables(worker, box):
        worker.variable("w", numpy.zeros(2, "float32"))
        worker.variable("variance", numpy.ones(2, "float32"), rule="add")

    with Twins(job, variables, "--outer", "nesterov", optimizer="sgd") as twins:
        twins.join()
        twins.round({"w": [-1, -1], "variance": [-0.9, -0.5]}, {"w": [-1, -1], "variance": [-0.9, -0.9]})
        assert numpy.allclose(twins.values("w"), 0.7 * 1.9)
        assert numpy.allclose(twins.values("variance"), [0.1, 0.3])


def test_a_box_whose_variables_differ_ends_and_the_others_do_not(job, capfd):
    def variables(worker, box):
        worker.variable("w", numpy.zeros(3, "float32"), layout=("versioned", "inplace")[box])

    with Twins(job, variables, "--rate", "0.5") as twins:
        said = []

        def join(bridge):
            try:
                bridge.join()
            except BaseException as error:
                said.append((type(error), str(error)))

        together([lambda bridge=bridge: join(bridge) for bridge in twins.bridges])
        assert sorted(kind.__name__ for kind, _ in said) == ["BrokenError", "SystemExit"]
        text = "the jobs of boxes 0 and 1 differ in variable 'w': (3,) and (3,), inplace"
        assert text in capfd.readouterr().err and (_group.BrokenError, text) in said


def test_a_box_is_healed_also_where_no_other_one_has_work(job):
    with Twins(job, {"w": numpy.full(2, 5, "float32")}, "--heal") as twins:
        twins.join()
        twins.round({"w": [1, 1]}, {"w": [1, 1]})
        twins.round({}, {"w": [numpy.nan, 1]})
        assert twins.values("w") == [[6, 6], [6, 6]]
        twins.round({"w": [1, 1]}, {"w": [1, 1]})
        assert twins.values("w") == [[7, 7], [7, 7]]


def test_a_sum_that_float32_does_not_hold_is_not_decided(job):
    with Twins(job, {"w": numpy.zeros(2, "float32")}, "--combine", "sum") as twins:
        twins.join()
        twins.round({"w": [1, 1]}, {"w": [1, 1]})
        for worker in twins.workers:
            worker.variable("w").push(numpy.full(2, 3e38, "float32"))
            worker.step()
        for bridge in twins.bridges:  # in a thread, SystemExit would only end the thread
            bridge.round = lambda round=bridge.round: pytest.raises(SystemExit, round)
        ended = together([bridge.round for bridge in twins.bridges])
        assert all("adds up to more than float32 holds" in str(one.value) for one in ended)
        assert [(bridge.header.round, bridge.header.ready) for bridge in twins.bridges] == [(1, None)] * 2


def test_a_variable_that_is_declared_late_is_left_alone(job):
    with Twins(job, {"w": numpy.zeros(2, "float32")}, "--rate", "1") as twins:
        twins.join()
        for box, worker in enumerate(twins.workers):
            worker.variable("late", numpy.full(2, box, "float32"))
        twins.round({"w": [1, 1]}, {"w": [1, 1]})
        twins.bridges.clear()
        twins.make("--rate", "1")
        assert all(bridge.box.declared_late == ["late"] for bridge in twins.bridges)
        twins.join()
        twins.round({"w": [1, 1], "late": [7, 7]}, {"w": [1, 1]})
        assert twins.values("w") == [[2, 2]] * 2 and twins.values("late") == [[7, 7], [1, 1]]


@pytest.mark.parametrize("declared", [0, 1])
def test_a_bridge_of_a_restored_job_waits_for_its_variables(job, tmp_path, monkeypatch, declared):
    names = ["w", "v"]
    with ps_shm.Server(job, optimizer="add"), ps_shm.Worker(job) as worker:
        worker.variables({name: numpy.ones(3, "float32") for name in names})
        worker.step()
        saved = ps_shm.checkpoint.save(job, tmp_path)
    with ps_shm.Server(job, optimizer="add", restore=saved), ps_shm.Worker(job) as worker:
        assert ps_shm.View(job).global_step == 1

        def declare(some):
            worker.variables({name: numpy.zeros(3, "float32") for name in some})

        def go_on(_):  # the bridge has looked
            declare(names)
            worker.step()

        if declared:
            declare(names[:declared])
        monkeypatch.setattr(_box.time, "sleep", go_on)
        box = _box.Box(_options.parse(["--job", job, "--box", "0", "--boxes", "2", "--meet", "none"]))
        assert [part.name for part in box.parts] == ["v", "w"]


def test_while_another_process_holds_the_snapshot_a_box_has_no_weight(job, monkeypatch, capfd):
    monkeypatch.setattr(_box, "CUT_SECONDS", 0.01)
    with Twins(job, {"w": numpy.zeros(1, "float32")}, "--combine", "sum") as twins:
        with ps_shm.View(twins.jobs[0]).snapshot(), pytest.raises(ps_shm.Timeout, match="one snapshot at a time"):
            twins.bridges[0].box.found(twins.bridges[0].state)
        twins.join()
        with ps_shm.View(twins.jobs[0]).snapshot():
            for number in range(1, 4):
                twins.round({"w": [10]}, {"w": [1]})
                assert [bridge.header.round for bridge in twins.bridges] == [number] * 2
                assert twins.values("w") == [[11 * number], [number]]
        said = "takes part without its box's work until the job can have a snapshot"
        assert capfd.readouterr().err.count(said) == 1
        twins.round({"w": [10]}, {"w": [1]})
        assert twins.values("w") == [[44], [44]]
        with ps_shm.View(twins.jobs[0]).snapshot():
            twins.round({"w": [10]}, {"w": [1]})
        assert capfd.readouterr().err.count(said) == 1  # again
        twins.round({"w": [10]}, {"w": [1]})
        assert twins.values("w") == [[66], [66]]


def test_a_new_state_begins_above_the_last_ticket_of_the_jobs_guest(job):
    with Twins(job, {"w": numpy.zeros(1, "float32")}) as twins:
        tickets = [2**63, 1]
        for name, ticket in zip(twins.jobs, tickets):
            assert ps_shm.View(name).guest_ticket == 0
            with ps_shm.Guest(name) as guest:
                guest.add_once(ticket, {"w": numpy.ones(1, "float32")})
            assert ps_shm.View(name).guest_ticket == ticket
        twins.make()
        twins.join()
        twins.round({"w": [1]}, {"w": [3]})
        assert twins.values("w") == [[3], [3]]
        assert ps_shm.View(twins.jobs[0]).guest_ticket == twins.bridges[0].header.ticket > 2**63


def test_a_header_has_room_for_the_most_boxes_and_tables(job):
    boxes, tables, most = _options.MAX_BOXES, 1024, 2**64 - 1
    counted, numbers = {str(box): 2**62 - 1 for box in range(boxes)}, (most,) * tables
    ready = _state.Ready(most, most, most, most, counted, 1 / 3, 1 / 3, numbers)
    by_table = {name: numbers for name in ("most_keys", "keys", "based", "due", "cut_rows", "cut_versions", "versions", "last_rows")}
    with ps_shm.Server(job, optimizer="add"):
        state = _state.State(job, ps_shm.View(job).instance, 1, "float32", "add")
        state.set(phase="counted", counted=counted, ready=ready, members=tuple(range(boxes)),
                  tables=("t" * 127,) * tables, **by_table)  # fmt: skip
        header = state.header
        del state
        assert _state.State(job, ps_shm.View(job).instance, 1, "float32", "add").header == header


def test_a_job_that_ends_before_it_has_a_change_counts_no_work_of_others(job):
    with BoxesHere(job, 3, optimizer="add", lr=1.0) as boxes:
        variables = [worker.variable("w", numpy.zeros(1, "float32")) for worker in boxes.workers]

        def push(*gradients):
            for worker, variable, gradient in zip(boxes.workers, variables, gradients):
                variable.push(numpy.full(1, gradient, "float32"))
                worker.step()

        push(0, 0, 0)
        boxes.make("--combine", "sum")
        boxes.join()
        *others, ended = boxes.bridges

        def end(*_):
            ended.box._has_ended = True

        ended.box.add, ended.box.wait_for_workers = end, lambda: None
        push(1, 1, 1)
        together([bridge.round for bridge in boxes.bridges])
        push(0, 0, 10)  # within the step in which the job ends
        assert ended._lacks_change()
        for bridge, group in zip(others, ThreadGroup.make(2)):
            bridge.group = group
        push(100, 100)
        together([bridge.join for bridge in others])
        together([bridge.round for bridge in others])
        for bridge, group in zip(boxes.bridges, ThreadGroup.make(3)):
            bridge.group = group
        boxes.join()
        together([bridge.round for bridge in boxes.bridges])
        assert [float(bridge.state.anchor[0]) for bridge in boxes.bridges] == [213] * 3


def test_a_report_that_cannot_be_written_ends_no_bridge(job, capfd):
    with Twins(job, {"w": numpy.zeros(2, "float32")}, "--report", "/dev/full") as twins:
        twins.join()
        twins.round({"w": [1, 1]}, {"w": [1, 1]})
        assert twins.values("w") == [[1, 1]] * 2
    assert capfd.readouterr().err.count("the report ends here: [Errno 28] No space left on device") == 2


def test_a_job_of_single_writer_variables_is_refused(job):
    with BoxesHere(job, 1, optimizer="adam", workers=1, layout="single-writer") as boxes:
        boxes.workers[0].variable("w", numpy.zeros(3, "float32"))
        boxes.workers[0].step()
        with pytest.raises(ps_shm.Error, match="'w' of job .* has layout single-writer, which a bridge cannot change"):
            boxes.make()


def test_a_job_with_nothing_to_exchange_is_refused(job):
    with Twins(job, {"count": numpy.array(7)}) as twins:
        with pytest.raises(ps_shm.Error, match="has no float32 variable or table whose changes could be exchanged"):
            twins.make("--rate", "1")


def noise(box, number, name, size):
    return numpy.random.default_rng([box.number, number, size]).standard_normal(size).astype("float32")


@pytest.mark.parametrize("wire", ["float32", "int8"])
def test_one_box_with_outer_add_changes_no_bit(job, tmp_path, wire):
    settings = dict(count=1, mode="sync", optimizer="momentum", gradient=noise)
    with Boxes(job, tmp_path, wire=wire, combine="mean", **settings) as boxes:
        boxes.start()
        boxes.after_rounds(5)
        boxes[0].hold()
        steps, digest = boxes[0].pushes[0], ps_shm.View(boxes[0].job).digest()
        boxes[0].release()
        boxes.end()
    with Boxes(job, tmp_path, **settings) as alone:
        alone[0].begin(steps)
        wait_until(lambda: alone[0].pushes[0] == steps, "all steps")
        alone[0].hold()
        assert ps_shm.View(alone[0].job).digest() == digest
        alone[0].release()


@pytest.mark.parametrize("fragments", [1, 2])
def test_without_overlap_it_is_diloco(job, tmp_path, fragments):
    """Against DiLoCo as it is written (Douillard et al. 2023, algorithm 1) with torch.optim.SGD as the outer optimizer; with
    fragments against Streaming DiLoCo without overlap and with equal weights (Douillard et al. 2025, algorithm 2)."""
    torch = pytest.importorskip("torch")
    size, inner, outer, rate = 2200, 7, 6, 0.05  # three blocks

    def curvature(box):
        return torch.from_numpy(numpy.random.default_rng(box).uniform(0.5, 2, size).astype("float32"))

    def target(box):
        return torch.from_numpy(numpy.random.default_rng(100 + box).standard_normal(size).astype("float32"))

    parts = [slice(0, size)] if fragments == 1 else [slice(0, 1024), slice(1024, size)]
    models = [torch.nn.Parameter(torch.zeros(size)[part]) for part in parts]
    optimizers = [torch.optim.SGD([model], lr=0.7, momentum=0.9, nesterov=True) for model in models]
    boxes = [torch.zeros(size) for _ in range(3)]
    for number in range(outer):
        for box, w in enumerate(boxes):
            for _ in range(inner):
                w -= rate * curvature(box) * (w - target(box))
        part, model, optimizer = (of[number % fragments] for of in (parts, models, optimizers))
        model.grad = model.detach() - torch.stack([w[part] for w in boxes]).mean(0)
        optimizer.step()
        for w in boxes:
            w[part] = model.detach()

    def steps(worker, w, box):
        for _ in range(inner):
            values = torch.from_numpy(w.pull())
            w.push((curvature(box) * (values - target(box))).numpy())
            worker.step()

    with BoxesHere(job, 3, lr=rate, mode="async") as here:
        variables = [worker.variable("w", numpy.zeros(size, "float32")) for worker in here.workers]
        for worker in here.workers:
            worker.step()
        here.make("--outer", "nesterov", "--fragments", str(fragments))
        here.join()
        bridges = here.bridges
        for _ in range(outer):
            for box in range(3):
                steps(here.workers[box], variables[box], box)
            assert all(together([bridge.round for bridge in bridges]))
            assert all((bridge.state.anchor == bridges[0].state.anchor).all() for bridge in bridges)
        anchor, expected = bridges[0].state.anchor[:size], torch.cat([model.detach() for model in models]).numpy()
        assert numpy.abs(anchor - expected).max() < 4e-6 and numpy.abs(expected).max() > 0.3
        for box, variable in zip(boxes, variables):
            assert numpy.abs(variable.pull() - box.numpy()).max() < 4e-6


def test_values_that_are_not_finite_do_not_cross(job, tmp_path):
    def poisoned(box, number, name, size):
        gradient = numpy.ones(size, "float32")
        if box.number == 1 and number == 50:
            gradient[0] = numpy.nan
        return gradient

    with Boxes(job, tmp_path, count=2, gradient=poisoned, heal=True) as boxes:
        boxes.start()
        wait_until(lambda: "not finite" in boxes[1].text(), "the bridge's notice")
        boxes.after_rounds(2)
        anchors = boxes.end()
        assert numpy.isfinite(anchors[0]["d"]).all() and numpy.isfinite(anchors[1]["d"]).all()
        assert [one["dropped_steps"] > 0 for box in boxes for one in box.records() if one.get("end")] == [False, True]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_box_is_healed_with_the_state_of_its_optimizer(job, optimizer):
    values = {"w": numpy.zeros(2, "float32"), "rows": numpy.zeros((3, 2), "float32")}
    with Twins(job, values, "--heal", optimizer=optimizer) as twins:
        twins.join()
        ones = {"w": [1, 1], "rows": numpy.ones((3, 2))}
        twins.round(ones, ones)
        twins.round({"w": [numpy.inf, 1]}, {})
        twins.round({"w": [1, 1]}, {})
        before = twins.values("w")[0]
        twins.round({"w": [1, 1]}, {})
        assert numpy.isfinite(twins.values("w")).all() and twins.values("w")[0] != before
        assert [bridge.header.dropped_steps for bridge in twins.bridges] == [1, 0]


def test_jobs_that_differ_are_refused_with_what_differs(job, tmp_path):
    with Boxes(job, tmp_path, count=2) as boxes:
        boxes[0].start_bridge()
        boxes[1].start_bridge(wire="int8")
        boxes[1].bridge.join(PATIENCE)
        assert boxes[1].bridge.exitcode == 2
        for box in boxes:
            wait_until(lambda box=box: "boxes 0 and 1 differ in --wire: float32 and int8" in box.text(), "what differs")
        boxes[0].kill_bridge()
        boxes[1].end_job()
        boxes.variables = {"c": (4, "versioned"), "d": (5000, "versioned")}
        boxes[1].start_job()
        boxes[0].start_bridge()
        boxes[1].start_bridge()
        boxes[1].bridge.join(PATIENCE)
        for box in boxes:
            text = "the jobs of boxes 0 and 1 differ in variable 'c': (3,) and (4,)"
            wait_until(lambda box=box, text=text: text in box.text(), "what differs")


def test_a_job_has_one_bridge(job, tmp_path):
    with Boxes(job, tmp_path, count=1) as boxes:
        boxes.start()
        first, boxes[0].bridge = boxes[0].bridge, None
        boxes[0].start_bridge()
        boxes[0].bridge.join(PATIENCE)
        assert boxes[0].bridge.exitcode == 1 and "has a bridge already" in boxes[0].text()
        boxes[0].bridge = first
        boxes.end()


def test_inspect_shm_shows_the_bridge(job, tmp_path):
    with Boxes(job, tmp_path, count=2, restarts=True) as boxes:
        boxes.start()
        boxes.after_rounds(1)
        show = [TOOLS / "inspect_shm", "show", "--job", boxes[0].job]
        shown = json.loads(subprocess.run([*show, "--json"], check=True, capture_output=True).stdout)["bridge"]
        assert shown["alive"] and shown["boxes"] == 2 and shown["members"] == [0, 1] and shown["round"] > 0
        page = (pathlib.Path(os.environ["PS_SHM_SOURCE"]) / "docs/json.md").read_text()
        told = set(re.findall(r"`bridge\.([a-z_]+)[^`]*`", page))
        assert set(shown) == told - {"error"}
        text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        assert "bridge of box 0 of 2: alive, round " in text and "norm of the difference" in text
        metrics = subprocess.run([TOOLS / "inspect_shm", "metrics"], check=True, capture_output=True, text=True).stdout
        assert f'ps_shm_bridge_boxes{{job="{boxes[0].job}"}} 2' in metrics
        boxes[0].kill_bridge()
        shown = json.loads(subprocess.run([*show, "--json"], check=True, capture_output=True).stdout)["bridge"]
        assert not shown["alive"]
        with subprocess.Popen([TOOLS / "inspect_shm", "watch", "--job", boxes[0].job], stdout=subprocess.PIPE, text=True) as watch:
            first, second = read_line(watch.stdout), read_line(watch.stdout)
            watch.kill()
        assert "! the bridge to other boxes is not running" in first and "bridge of box 0 of 2   round " in second
        boxes[0].start_bridge()
        boxes.after_rounds(1)
        boxes.end()


def run_module(*arguments, **variables):
    return subprocess.run([sys.executable, "-m", "ps_shm.bridge", *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          env={**os.environ, **variables})


def test_places_may_be_addresses_of_ipv6(monkeypatch):
    def parsed(*meet):
        return _options.parse(["--job", "none", "--box", "0", "--boxes", "2", *meet]).meet

    for text, places in (("[::1]:1", (("::1", 1),)), ("[::1]", (("::1", 29400),)), ("::1", (("::1", 29400),)),
                         ("fe80::1%eth0", (("fe80::1%eth0", 29400),)), ("[fe80::1%eth0]:7", (("fe80::1%eth0", 7),)),
                         ("a:1,[::1]:2", (("a", 1), ("::1", 2))), ("a", (("a", 29400),))):  # fmt: skip
        assert parsed("--meet", text) == places
        assert parsed("--meet", ",".join(_options.shown_place(*place) for place in places)) == places
    for text in ("[a]:1", "[::1", "::1]:1", "[::1]1", "[::1]:", "[::1]:65536", "a:0", ":1", "", "a,", "::g", "[]"):
        with pytest.raises(SystemExit):
            parsed("--meet", text)
    for address in ("::1", "[::1]"):
        monkeypatch.setenv("MASTER_ADDR", address)
        monkeypatch.setenv("MASTER_PORT", "5")
        assert parsed() == (("::1", 5),)


def test_who_cannot_keep_a_store_says_where(monkeypatch):
    def fail(*_):
        raise RuntimeError("the address is in use")

    monkeypatch.setattr(_group.Group, "_open", fail)
    with pytest.raises(SystemExit, match=r"bridge 0: cannot keep a store at \[::1\]:7: the address is in use"):
        _group.Group(_options.parse(["--job", "none", "--box", "0", "--boxes", "2", "--meet", "[::1]:7"]))


def test_a_box_has_one_bridge(job, tmp_path):
    with Boxes(job, tmp_path, count=2, restarts=True) as boxes:
        second = Box(boxes, 2)
        try:
            boxes.start()
            boxes.after_rounds(1)
            groups = [box.text().count("group of 2 of 2 boxes") for box in boxes]
            second.start_bridge(box=1)
            second.bridge.join(PATIENCE)
            assert second.bridge.exitcode == 3
            assert f"box 1 has another bridge: process {boxes[1].bridge.pid} on {socket.gethostname()}, started 2" in second.text()
            boxes.after_rounds(2)
            assert [box.text().count("group of 2 of 2 boxes") for box in boxes] == groups
            boxes[1].start_bridge()  # after its death
            boxes.after_rounds(2)
            assert "has another bridge" not in boxes[1].text()
            boxes.check(boxes.end())
        finally:
            second.kill_bridge()
            second.end_job()


def test_the_box_that_keeps_the_store_has_one_bridge(monkeypatch, capfd):
    options = _options.parse(["--job", "none", "--box", "0", "--boxes", "2", "--meet", f"127.0.0.1:{free_port()}"])
    first, open_store = _group.Group(options), _group.Group._open
    assert first.options is options
    monkeypatch.setattr(_group.Group, "_open", lambda self, place, is_own: open_store(self, place, False))  # elsewhere
    with pytest.raises(SystemExit) as ended:
        _group.Group(options)
    assert ended.value.code == 3 and f"box 0 has another bridge: process {os.getpid()} on " in capfd.readouterr().err


def test_the_program_says_what_is_wrong(tmp_path):
    assert "--meet is required" in run_module("--job", "none", "--box", "0", "--boxes", "2").stderr
    assert "the boxes are 0 to 1" in run_module("--job", "none", "--box", "2", "--boxes", "2", "--meet", "a").stderr
    assert "'a:b' is not HOST:PORT" in run_module("--meet", "a:b").stderr
    assert "invalid choice: 'tcp'" in run_module("--backend", "tcp").stderr
    assert "'::1:29400' is not HOST:PORT; an address of IPv6 has brackets: [ADDRESS]:PORT" in run_module("--meet", "::1:29400").stderr
    assert "'box0:abc' is not HOST:PORT" in run_module("--job", "none", MASTER_ADDR="box0", MASTER_PORT="abc").stderr
    lost = ("--job", "none", "--box", "0", "--boxes", "2", "--meet", "a", "--save", f"{tmp_path}/none/last")
    assert f"there is no folder '{tmp_path}/none'" in run_module(*lost).stderr
    assert "has to be longer than --seconds" in run_module(
        "--job", "none", "--meet", "a", "--timeout", "1", RANK="0", WORLD_SIZE="1").stderr
    (tmp_path / "torch.py").write_text("raise ImportError")
    without = run_module(PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert without.returncode == 1 and "pip install torch" in without.stderr


def test_a_launch_that_ends_before_its_bridge_has_begun_says_so(job, tmp_path):
    python = tmp_path / "python3"
    python.write_text(f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    python.chmod(0o755)
    done = subprocess.run([TOOLS / "launch_shm", "--job", job, "--workers", "1", "--model", "count", "--steps", "5", "--bridge",
                           "127.0.0.1:1/2 --box 0"], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)  # fmt: skip
    assert done.returncode == 0 and "the job is done before its bridge had found it" in done.stdout


@pytest.fixture
def launches(job, tmp_path):
    """Two boxes' launches with bridges."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    meet = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [TOOLS / "launch_shm", "--job", f"{job}-{box}", "--workers", "1", "--mode", "async", "--model", "count", "--steps",
             "1000000000", "--count-interval", "1ms",
             "--bridge", f"{meet}/2 --box {box} --every 50 --seconds 1 --report {tmp_path / f'report.{box}'}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        for box in range(2)
    ]  # fmt: skip
    yield started
    for launch in started:
        launch.kill()
        launch.wait(PATIENCE)


def bridge_of(job):
    return int(subprocess.run(["pgrep", "-f", f"ps_shm.bridge --job {job} "], capture_output=True, text=True).stdout)


def test_launch_shm_starts_it_and_starts_it_again(job, launches, tmp_path):
    reports = [tmp_path / f"report.{box}" for box in range(2)]

    def rounds(box):
        return sum("norm" in line for line in reports[box].read_text().splitlines()) if reports[box].exists() else 0

    wait_until(lambda: rounds(0) > 1 and rounds(1) > 1, "rounds")
    os.kill(bridge_of(f"{job}-1"), signal.SIGKILL)
    before = rounds(1)
    wait_until(lambda: rounds(1) > before + 1, "rounds after the death")
    for launch in launches:
        launch.send_signal(signal.SIGINT)
    texts = [launch.communicate(timeout=PATIENCE)[0] for launch in launches]
    assert "bridge was killed by signal 9 (Killed); the workers continue, and it is started again" in texts[1]
    assert "interrupted at step" in texts[0]
    assert [launch.returncode for launch in launches] == [130, 130], texts


def test_ctrl_c_on_launch_shm_ends_a_stopped_bridge(job, launches, tmp_path):
    wait_until(lambda: all((tmp_path / f"report.{box}").exists() for box in range(2)), "rounds")
    os.kill(bridge_of(f"{job}-0"), signal.SIGSTOP)
    for launch in launches:
        launch.send_signal(signal.SIGINT)
    assert [(launch.communicate(timeout=PATIENCE)[0], launch.returncode)[1] for launch in launches] == [130, 130]

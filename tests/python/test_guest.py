"""Guests: changes from beside the workers of a job."""
import threading

import numpy
import pytest

import ps_shm


def test_a_guest_adds_and_assigns_once(job):
    with ps_shm.Server(job, optimizer="add"), ps_shm.Worker(job) as worker:
        w = worker.variable("w", numpy.zeros((2, 3), "float32"))
        rows = worker.variable("rows", numpy.zeros((4, 2), "float32"), layout="inplace")
        others = worker.variables({"count": numpy.array([7, 8]), "bytes": numpy.array([1, 2, 3], "uint8"),
                                   "flags": numpy.zeros(3, "bool")})
        ones = {"w": numpy.ones((2, 3), "float32"), "rows": numpy.ones((4, 2), "float32")}
        with ps_shm.Guest(job) as guest:
            assert guest.add_once(1, ones) == 0
            assert guest.add_once(1, ones) == 0  # it is there already
            with pytest.raises(ps_shm.Error, match="already|taken"):
                ps_shm.Guest(job)
        with ps_shm.Guest(job) as guest:
            assert guest.add_once(1, ones) == 0
            assert w.pull().sum() == 6 and rows.pull().sum() == 8
            guest.assign_once(2, {"w": numpy.full(6, 5, "float32")})  # flat
            assert w.pull().sum() == 30
            with pytest.raises(ps_shm.Error, match="tickets only grow"):
                guest.add_once(1, ones)
            with pytest.raises(TypeError, match="float32"):
                guest.add_once(3, {"w": numpy.ones((2, 3), "int64")})
            for change in (guest.add_once, guest.assign_once):  # elements of another shape would be taken for others
                with pytest.raises(ValueError, match=r"of variable 'w': the array has the shape \(3, 2\), and \(2, 3\) is"):
                    change(3, {"rows": ones["rows"], "w": numpy.ones((3, 2), "float32")})
            with pytest.raises(ValueError, match=r"shape \(5,\)"):
                guest.add_once(3, {"w": numpy.ones(5, "float32")})
            with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
                guest.add_once(3, {"w": ones["w"]}, in_doubt={"w": numpy.ones((3, 2), "float32")})
            assert w.pull().sum() == 30 and rows.pull().sum() == 8  # nothing of that was taken
            with pytest.raises(ps_shm.Error, match="none"):
                guest.add_once(3, {"none": ones["w"]})
            changes = {"count": numpy.array([1, 2]), "bytes": numpy.array([250, 2, 3], "uint8")}
            for _ in range(2):
                guest.add_once(3, changes)
            assert others["count"].pull().tolist() == [8, 10] and others["bytes"].pull().tolist() == [251, 4, 6]
            slow = worker.variable("slow", numpy.zeros(1, "float32"), rule="momentum")
            for ticket, resets in ((10, False), (11, True)):
                slow.push(numpy.ones(1, "float32"))
                guest.assign_once(ticket, {"slow": numpy.zeros(1, "float32")}, reset=resets)
                slow.push(numpy.zeros(1, "float32"))
                assert bool(slow.pull()[0] == 0) is resets  # a momentum moves it
            guest.assign_once(12, {"flags": numpy.array([True, False, True])})
            assert others["flags"].pull().tolist() == [True, False, True]
            with pytest.raises(ps_shm.Error, match="bool has no sum"):
                guest.add_once(13, {"flags": numpy.array([True, False, True])})
        assert [one.rank for one in ps_shm.View(job).workers()] == [0]
        with pytest.raises(ps_shm.Error):
            guest.add_once(4, ones)  # it has left


def test_in_sync_mode_a_step_of_the_workers_takes_it(job):
    with ps_shm.Server(job, optimizer="add", mode="sync", workers=1), ps_shm.Worker(job) as worker:
        w = worker.variable("w", numpy.zeros(3, "float32"))
        w.push(numpy.ones(3, "float32"))
        worker.step()
        ones = {"w": numpy.ones(3, "float32")}
        with ps_shm.Guest(job) as guest:
            with pytest.raises(ps_shm.Timeout, match="no step"):
                guest.add_once(1, ones, wait=0.05)  # the worker makes none
            added = threading.Thread(target=guest.add_once, args=(1, ones))
            added.start()
            while added.is_alive():
                w.push(numpy.zeros(3, "float32"))
                worker.step()
            assert guest.add_once(1, ones) == 0
        assert (w.pull() == 2).all()
        assert worker.rank == 0 and ps_shm.View(job).workers()[0].dropped == 0

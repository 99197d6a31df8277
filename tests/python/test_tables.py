"""Tables by key from Python: arrays of NumPy and PyTorch, results, errors."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy
import pytest

import ps_shm
from conftest import PATIENCE


@pytest.fixture
def table(worker):
    return worker.table("items", 3, 1000)


def test_rows_are_made_when_they_are_pushed(table):
    keys = numpy.array([7, 1 << 63, 12345678901234567890], numpy.uint64)
    rows, found = table.pull(keys)
    assert rows.shape == (3, 3) and rows.dtype == numpy.float32 and not found.any()
    assert (abs(rows) <= 0.05).all()
    pushed = table.push(keys, numpy.ones((3, 3), numpy.float32))
    assert (pushed.updated, pushed.unadmitted, pushed.refused) == (3, 0, 0)
    now, found = table.pull(keys)
    assert found.all() and numpy.allclose(now, rows + 1)
    assert table.push(keys, numpy.zeros((3, 3), numpy.float32)).made == 0
    assert table.contains(numpy.array([[7], [8]], numpy.int64)).tolist() == [[True], [False]]
    assert table.evict(keys[:1]) == 1
    assert numpy.array_equal(table.pull(keys)[0][0], rows[0])
    statistics = table.statistics()
    assert (statistics.rows, statistics.made, statistics.evicted, statistics.max_rows) == (2, 3, 1, 1000)
    assert statistics.rows_with_room == 1000  # /dev/shm has memory for all of them
    assert "rows=2" in repr(statistics) and repr(table) == "Table('items', row_size=3)"
    assert repr(pushed) == "PushedKeys(updated=3, made=3, unadmitted=0, refused=0)"


def test_a_pull_may_create_rows(table):
    keys = numpy.array([[3, 4], [3, 5]], numpy.uint64)
    assert not table.pull(keys)[1].any() and not table.contains(keys).any()
    rows, found = table.pull(keys, create=True)
    assert not found.any() and table.contains(keys).all() and table.statistics().rows == 3
    again, found = table.pull(keys, create=True)
    assert found.all() and numpy.array_equal(again, rows)


def test_rows_of_bfloat16_take_half_the_memory_and_lose_no_small_change(job, worker):
    table = worker.table("half", 64, 1000, dtype="bfloat16")
    keys = numpy.arange(200, dtype=numpy.uint64)
    table.assign(keys, numpy.full((200, 64), 1.001, numpy.float32))
    assert (table.pull(keys)[0] == 1).all()  # the nearest
    for _ in range(64):
        table.push(keys, numpy.full((200, 64), 2.0**-10, numpy.float32))  # too small to change 1 by rounding to nearest
    rows = table.pull(keys)[0]
    assert rows.dtype == numpy.float32 and abs(rows.mean() - (1 + 64 / 1024)) < 0.002
    (info,) = (one for one in ps_shm.View(job).tables() if one.name == "half")
    assert info.dtype == "bfloat16" and info.row_bytes == 32 + 64 * 2
    saved = table.export(state=True)
    assert numpy.array_equal(saved.rows[numpy.argsort(saved.keys)], rows) and saved.rows.dtype == numpy.float32
    assert "200 of 1000 rows of 64 numbers of bfloat16" in inspected(job, "show", "half")
    with pytest.raises(ps_shm.Error, match="already exists with dtype bfloat16, but float32 was requested"):
        worker.table("half", 64, 1000)
    for dtype, error, words in (("int64", ps_shm.Error, "rows are of float32 or bfloat16"), ("float17", ValueError, "float17")):
        with pytest.raises(error, match=words):
            worker.table("other", 64, 1000, dtype=dtype)


def test_a_negative_key_is_the_unsigned_one_and_keys_have_any_shape(table):
    table.assign(numpy.array([[-1, 5]], numpy.int64), numpy.arange(6, dtype=numpy.float32).reshape(1, 2, 3))
    rows, found = table.pull(numpy.array([(1 << 64) - 1], numpy.uint64))
    assert found.tolist() == [True] and rows.tolist() == [[0, 1, 2]]
    out = numpy.empty((1, 2, 3), numpy.float32)
    assert table.pull(numpy.array([[5, 5]], numpy.int64), out)[0] is out
    assert out.tolist() == [[[3, 4, 5], [3, 4, 5]]]


def test_tensors_of_pytorch(table):
    torch = pytest.importorskip("torch")
    keys = torch.tensor([3, 4, 3])
    table.prefetch(keys)
    table.assign(keys, torch.zeros(3, 3))
    table.push(keys, torch.ones(3, 3))  # those of a repeated key are summed
    out = torch.empty(3, 3)
    table.pull(keys, out)
    assert out.tolist() == [[2] * 3, [1] * 3, [2] * 3]


def test_what_is_exported_can_be_assigned_to_another_table(worker, table):
    keys = numpy.random.default_rng(1).integers(0, 1 << 63, 500, numpy.uint64)
    table.push(keys, numpy.random.default_rng(2).normal(size=(500, 3)).astype("float32"))
    saved = table.export()
    assert saved.keys.dtype == numpy.uint64 and sorted(saved.keys) == sorted(keys)
    assert saved.is_full and saved.state is None and len(saved.evicted) == 0
    assert repr(saved) == "TableExport(rows=500, evicted=0, is_full=True)"
    other = worker.table("others", 3, 2000, evict="none")
    other.assign(saved.keys, saved.rows)
    assert numpy.array_equal(other.pull(keys)[0], table.pull(keys)[0])


def test_rows_go_on_with_the_state_that_they_are_exported_with(worker):
    tables = [worker.table(name, 3, 100, rule="adagrad") for name in ("one", "two")]
    keys, gradients = numpy.arange(10), numpy.full((10, 3), 0.5, numpy.float32)
    for _ in range(3):
        tables[0].push(keys, gradients)
    saved = tables[0].export(state=True)
    assert tables[0].slots == ["n"] and tables[0].state_size == 3 and saved.state.shape == (10, 3)
    tables[1].assign(saved.keys, saved.rows, saved.state)
    for table in tables:
        table.push(keys, gradients)
    assert numpy.array_equal(tables[0].pull(keys)[0], tables[1].pull(keys)[0])
    with pytest.raises(ValueError, match="assign of table 'two': the state"):
        tables[1].assign(saved.keys, saved.rows, saved.state[:, :2].copy())


def test_an_export_of_the_changes_since_another_one(table):
    ones = numpy.ones((10, 3), numpy.float32)
    table.push(numpy.arange(10), ones)
    base = table.export()
    table.push(numpy.arange(2), ones[:2])
    assert table.evict(numpy.array([5, 6, 7])) == 3
    table.push(numpy.array([7]), ones[:1])
    change = table.export(base.version)
    assert not change.is_full and sorted(change.keys) == [0, 1, 7] and sorted(change.evicted) == [5, 6]
    copy = dict(zip(base.keys, map(tuple, base.rows)))
    for key in change.evicted:
        copy.pop(key)
    copy.update(zip(change.keys, map(tuple, change.rows)))
    now = table.export()
    assert copy == dict(zip(now.keys, map(tuple, now.rows)))
    assert len(table.export(change.version).keys) == 0
    assert table.export(12345).is_full


def test_evicted_keys_are_popped_once(worker, table):
    table.push(numpy.arange(600), numpy.ones((600, 3), numpy.float32))
    assert table.pop_evicted().tolist() == []
    table.evict(numpy.array([3, 4, 5]))
    table.push(numpy.array([4]), numpy.ones((1, 3), numpy.float32))
    assert table.pop_evicted().tolist() == [3, 5]
    assert table.pop_evicted().tolist() == []
    table.evict(numpy.arange(300))  # more than are remembered
    with pytest.raises(ps_shm.Error, match="are forgotten") as raised:
        table.pop_evicted()
    assert raised.value.code == ps_shm.ErrorCode.EXHAUSTED
    assert table.pop_evicted().tolist() == []


def test_a_job_goes_on_with_the_tables_of_a_checkpoint(job, tmp_path):
    keys, gradients = numpy.arange(100), numpy.ones((100, 3), numpy.float32)

    def table_of(worker):
        return worker.table("items", 3, 1000, rule="adagrad")

    with ps_shm.Server(job, lr=0.1), ps_shm.Worker(job) as worker:
        table = table_of(worker)
        table.push(keys, gradients)
        saved = ps_shm.checkpoint.save(job, tmp_path)
        table.push(keys, gradients)
        expected = table.pull(keys)[0]
    found = ps_shm.checkpoint.latest(tmp_path)
    assert repr(found.tables) == "[<stored table 'items' of 100 rows of 3>]" and found.tables[0].slots == ["n"]
    saved_keys, rows, state = found.read_table("items")
    assert sorted(saved_keys) == list(range(100)) and rows.shape == state.shape == (100, 3)
    with pytest.raises(KeyError, match="others"):
        found.read_table("others")
    with ps_shm.Server(job, lr=0.1, restore=saved), ps_shm.Worker(job) as worker:
        table = table_of(worker)
        assert numpy.array_equal(table.pull(saved_keys)[0], rows)
        table.push(keys, gradients)
        assert numpy.array_equal(table.pull(keys)[0], expected)


def test_options(worker):
    full = worker.table("full", 1, 64, evict="none")
    pushed = full.push(numpy.arange(100), numpy.ones((100, 1), numpy.float32))
    assert (pushed.updated, pushed.refused) == (64, 36)
    admitting = worker.table("admitting", 1, 1000, evict="lfu", admit_after=2)
    assert admitting.push(numpy.arange(5), numpy.ones((5, 1), numpy.float32)).unadmitted == 5
    expiring = worker.table("expiring", 1, 1000, evict="age", ttl=1000.0, touch_on_pull=True, initial_range=0.0)
    expiring.push(numpy.arange(5), numpy.ones((5, 1), numpy.float32))
    assert expiring.expire() == 0
    assert expiring.pull(numpy.arange(6))[0].ravel().tolist() == [1, 1, 1, 1, 1, 0]


def test_rows_in_use_do_not_expire(job, start):
    """A second process pushes all rows again and again, while this one looks for rows that have expired."""
    pusher = """
import sys, numpy, ps_shm
keys, ones = numpy.arange(1000), numpy.ones((1000, 4), numpy.float32)
with ps_shm.Worker(sys.argv[1], rank="any") as worker:
    table = worker.table("items", 4, 1000, rule="sgd", ttl=3600.0)
    for push in range(20000):
        table.push(keys, ones)
        if push == 0:
            print("begun")
    worker.leave()
"""
    with ps_shm.Server(job, workers=2, mode="async", lr=0.1), ps_shm.Worker(job, rank="any") as worker:
        table = worker.table("items", 4, 1000, rule="sgd", ttl=3600.0)
        program = start(pusher, job)
        assert program.line() == "begun"
        looks = 0
        while program.process.poll() is None:
            assert table.expire() == 0
            looks += 1
        assert program.finish()[0] == 0 and looks > 0
        statistics = table.statistics()
        assert (statistics.rows, statistics.expired, statistics.evicted) == (1000, 0, 0)


def test_mistakes(worker, table):
    ones = numpy.ones((2, 3), numpy.float32)
    with pytest.raises(TypeError, match="push of table 'items': keys.*int64"):
        table.push(numpy.array([1, 2], numpy.int32), ones)
    with pytest.raises(ValueError, match="push of table 'items': the gradients"):
        table.push(numpy.array([1, 2]), ones[:1])
    with pytest.raises(TypeError, match="the gradients.*float32"):
        table.push(numpy.array([1, 2]), ones.astype("float64"))
    with pytest.raises(ps_shm.Error, match="already exists with rows of 3, but 4"):
        worker.table("items", 4, 1000)
    with pytest.raises(ps_shm.Error, match="`evict`.*fifo.*lru.*lfu.*age.*none"):
        worker.table("others", 4, 1000, evict="fifo")
    with pytest.raises(ps_shm.Error, match="max_rows must be from 64"):
        worker.table("others", 4, 10)
    worker.leave()
    with pytest.raises(ps_shm.Error):
        table.pull(numpy.array([1]))


def test_the_programs_of_the_page_run(job, capsys):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()
    names = {}
    for program in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S):
        exec(re.sub(r'"(job|half)"', f'"{job}"', program), names)
    assert "PushedKeys(updated=2, made=0, unadmitted=0, refused=0) TableStatistics(rows=2, max_rows=1000000, made=2" in capsys.readouterr().out


def inspected(job, *words, code=0):
    tools = pathlib.Path(os.environ["PS_SHM_TOOLS"])
    command, *rest = words
    got = subprocess.run([tools / "inspect_shm", command, "--job", job, *rest], capture_output=True, text=True, timeout=PATIENCE)
    assert got.returncode == code, got.stderr
    return got.stdout if "--json" not in words else json.loads(got.stdout)


def inspected_diff(a, b, form="--json"):
    """The exit code and what it says of tables, or all that it prints."""
    words = [pathlib.Path(os.environ["PS_SHM_TOOLS"]) / "inspect_shm", "diff", a, b, *filter(None, [form])]
    got = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    return (got.returncode, json.loads(got.stdout)["tables"]) if form else got.stdout


@pytest.fixture
def hot(worker):
    """A table with 100 rows, of which key 7 is pushed most."""
    table = worker.table("items", 3, 1000, evict="lfu")
    ones = numpy.ones((100, 3), numpy.float32)
    table.push(numpy.arange(100), ones)
    for _ in range(5):
        table.push(numpy.array([7]), ones[:1])
    table.pull(numpy.arange(50, 150))
    return table


def test_the_inspector_shows_a_table(job, worker, hot):
    (table,) = inspected(job, "vars", "--json")["tables"]
    expected = {"name": "items", "rows": 100, "max_rows": 1000, "rows_with_room": 1000, "row_size": 3, "row_bytes": 48, "rule": "add", "evict": "lfu",
                "hits": 50, "misses": 50, "restarts": 0, "hit_rate": 0.5, "bytes": hot.statistics().bytes}
    assert {key: table[key] for key in expected} == expected
    assert re.search(r"^items +100 +1000 +0.20 +3 +add +lfu +1 +50.0 %", inspected(job, "vars", "--wide"), re.M)
    shown = inspected(job, "show", "items", "--json")["table"]
    assert shown["hottest"][0] == {"key": 7, "frequency": 6} and len(shown["hottest"]) == 10
    sampled = {name: shown["sampled"][name] for name in ("rows", "with_keys", "sealed", "being_made", "dead", "free")}
    assert sampled == {"rows": 128, "with_keys": 100, "sealed": 0, "being_made": 0, "dead": 0, "free": 28}
    assert shown["pinned"] == 0 and shown["made_per_second"] == 0
    text = inspected(job, "show", "items")
    counted = "128 rows looked at: 100 with keys, of these 0 sealed; 0 being made, 0 dead, 28 free; 0 pinned"
    assert counted in " ".join(text.split())  # a narrow terminal wraps it
    assert "spared 0, rescued 0, unadmitted 0, refused 0; searches restarted 0\n" in text
    assert "/dev/shm has memory for" not in text  # for all that there may be
    assert "100 of 1000 rows of 3 floats" in text and "hottest: key 7, frequency 6" in text
    assert inspected(job, "show", "--json")["bytes"]["tables"] == hot.statistics().bytes
    row = hot.pull(numpy.array([7]))[0][0].tolist()
    dumped = inspected(job, "dump", "items", "--limit", "0", "--json")["tables"][0]
    assert {"key": 7, "values": row} in dumped["rows"] and len(dumped["rows"]) == 100
    text = inspected(job, "dump", "items", "--limit", "3")
    assert text.startswith("items, 100 rows of 3 floats\n") and text.count(":") == 3 and "--limit 0 shows all" in text
    metrics = inspected(job, "metrics")
    for line in ("rows", "rows_made_total"):
        assert f'ps_shm_table_{line}{{job="{job}",table="items"}} 100\n' in metrics
    assert f'ps_shm_table_misses_total{{job="{job}",table="items"}} 50\n' in metrics
    assert f'ps_shm_table_restarts_total{{job="{job}",table="items"}} 0\n' in metrics
    (row,) = (row for row in inspected(job, "doctor", "--json")["jobs"] if row["job"] == job)
    assert row["bytes"] < 1 << 22  # not the length of the table's file
    inspected(job, "show", "nothing", code=1)
    inspected(job, "dump", "items", "--slice", "3", code=1)


def test_the_inspector_writes_a_table_to_files(job, worker, hot, tmp_path):
    keys = numpy.arange(100, dtype=numpy.uint64)
    wrote = " ".join(inspected(job, "dump", "items", "--npy", tmp_path / "t.npy").split())
    assert wrote == f"wrote items [100,3] of step 0 to {tmp_path}/t.npy, and its keys to {tmp_path}/t.keys.npy"
    inspected(job, "dump", "--npy", tmp_path)
    (row,) = json.loads((tmp_path / "index.json").read_text())["tables"]
    assert (row["name"], row["dtype"], row["shape"]) == ("items", "float32", [100, 3])
    for file, keys_file in (("t.npy", "t.keys.npy"), (row["file"], row["keys_file"])):
        assert numpy.array_equal(numpy.load(tmp_path / keys_file), keys)
        assert numpy.array_equal(numpy.load(tmp_path / file), hot.pull(numpy.arange(100))[0])


def test_the_inspector_tells_tables_from_each_other(job, worker, hot, tmp_path):
    kept = ps_shm.checkpoint.save(job, tmp_path)
    code, (row,) = inspected_diff(kept, job)
    assert (code, row["name"], row["rows_of_both"], row["different_count"], row["largest_at"]) == (0, "items", 100, 0, None)
    hot.push(numpy.array([9, 5]), numpy.array([[0, 0, 0], [0, 2, 1]], numpy.float32))
    hot.evict(numpy.array([7]))
    hot.push(numpy.array([1000, 1001]), numpy.ones((2, 3), numpy.float32))
    code, found = inspected_diff(kept, job)
    assert code == 3
    assert [(row["name"], row["rows_of_both"], row["only_in_a"], row["only_in_b"], row["different_count"],
             row["largest_at"], row["largest_difference"]) for row in found] == [("items", 99, 1, 2, 2, [5, 1], 2)]
    text = inspected_diff(kept, job, "")
    assert "table items: 1 keys only in a, 2 only in b\n" in text and "[99,3]" in text
    worker.table("more", 1, 64)
    assert "table more: only in b\n" in inspected_diff(kept, job, "")


def damage_rows(job):
    """Overwrites all of a table but its header; returns the file's path."""
    path = pathlib.Path(f"/dev/shm/ps_shm.{job}.t0.0")
    with open(path, "r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * (path.stat().st_size - 4096 * 2))
    return path


def test_the_doctor_finds_a_damaged_table(job, worker, hot):
    findings = inspected(job, "doctor", "--json", code=0)["findings"]
    assert not [finding for finding in findings if finding["kind"] == "damaged-table"]
    path = damage_rows(job)
    (finding,) = (f for f in inspected(job, "doctor", "--json", code=3)["findings"] if f["kind"] == "damaged-table")
    assert finding["job"] == job and "table items is damaged" in finding["what"]
    with open(path, "r+b") as file:
        file.seek(512)
        file.write(b"\xff" * 256)
    (finding,) = (f for f in inspected(job, "doctor", "--json", code=3)["findings"] if f["kind"] == "damaged-table")
    assert "is not a table of that job" in finding["what"]
    inspected(job, "vars", code=1)


DYING = """
import signal, sys, numpy, ps_shm
with ps_shm.Server(sys.argv[1]), ps_shm.Worker(sys.argv[1]) as worker:
    worker.table("items", 3, 1000).push(numpy.arange(100), numpy.ones((100, 3), numpy.float32))
    print("ready")
    signal.pause()
"""


def test_the_inspector_reads_the_tables_of_a_dead_job(job, start):
    program = start(DYING, job)
    assert program.line() == "ready"
    program.send(signal.SIGKILL)
    program.finish()
    shown = inspected(job, "show", "items", "--json")["table"]
    assert (shown["rows"], shown["sampled"]["with_keys"], shown["made_per_second"]) == (100, 100, None)
    (row,) = (row for row in inspected(job, "doctor", "--json", code=3)["jobs"] if row["job"] == job)
    assert row["state"] == "dead" and row["problem"] is None
    damage_rows(job)
    (row,) = (row for row in inspected(job, "doctor", "--json", code=3)["jobs"] if row["job"] == job)
    assert row["problem"].startswith("table items is damaged: ")
    inspected(job, "rm", "--yes")


def test_a_view_shows_tables(job, hot):
    view = ps_shm.View(job)
    (table,) = view.tables()
    assert (table.name, table.row_size, table.rule, table.parts, table.row_bytes, table.buckets) == ("items", 3, "add", 1, 48, 512)
    assert table.statistics.rows == 100 and "100 of 1000 rows" in repr(table)
    keys, rows = view.table_rows("items")
    assert sorted(keys.tolist()) == list(range(100)) and rows.shape == (100, 3)
    assert numpy.array_equal(rows, hot.pull(keys)[0])
    with pytest.raises(ps_shm.Error, match="there is no table 'others'.*has items"):
        view.table_rows("others")


def test_an_export_takes_the_memory_of_its_result_once(server, job):
    # In a process of its own: the most memory that a process had is known for all of its life.
    program = f"""
import resource
import numpy, ps_shm
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with ps_shm.Worker({job!r}, rank="any") as worker:
    table = worker.table("items", 64, 40_000, rule="adam")
    for begin in range(0, 40_000, 1000):
        table.push(numpy.arange(begin, begin + 1000, dtype=numpy.uint64), numpy.ones((1000, 64), numpy.float32))
    before = most()
    saved = table.export(state=True)
    bytes = saved.keys.nbytes + saved.rows.nbytes + saved.state.nbytes
    print(bytes, most() - before)
    saved.rows[:] = 0  # they are the caller's
    assert saved.state.shape == (40_000, table.state_size) and (table.pull(saved.keys)[0] != 0).all()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    result, taken = map(int, done.stdout.split())
    assert taken < 1.5 * result


# Uses the table in a process whose clock is ahead of that of this process.
ELSEWHERE = """
import sys, numpy, ps_shm
with ps_shm.Worker(sys.argv[1], rank="any") as worker:
    table = worker.table("items", 1, 1000, rule="sgd", ttl=3600.0)
    table.push(numpy.arange(500, 1000), numpy.ones((500, 1), numpy.float32))
    print(table.expire(), table.statistics().rows)
"""


def test_rows_that_were_used_in_another_time_namespace_have_their_age(job):
    elsewhere = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "-T", "--monotonic", "100000"]
    try:
        subprocess.run([*elsewhere, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no process in a time namespace can be started here: {error}")
    inspect = [pathlib.Path(os.environ["PS_SHM_TOOLS"]) / "inspect_shm"]

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ps_shm.Server(job, workers=2, mode="async", lr=0.1), ps_shm.Worker(job, rank="any") as worker:
        items = worker.table("items", 1, 1000, rule="sgd", ttl=3600.0)
        items.push(numpy.arange(500), numpy.ones((500, 1), numpy.float32))
        assert run(*elsewhere, sys.executable, "-c", ELSEWHERE, job).split() == ["0", "1000"]
        assert items.expire() == 0 and items.statistics().rows == 1000
        worker.variable("v", numpy.zeros(3, numpy.float32))
        with ps_shm.View(job).snapshot():
            pass
        for where in ([], elsewhere):
            ages = [row["seconds"] for row in json.loads(run(*where, *inspect, "workers", "--job", job, "--json"))["workers"]]
            ages.append(json.loads(run(*where, *inspect, "show", "--job", job, "--json"))["snapshot"]["age_seconds"])
            assert len(ages) == 3 and 0 < min(ages) and max(ages) < 50_000

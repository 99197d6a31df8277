"""Plays one round: starts its job, does to it what the orders say, and checks what is left of it."""
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

SHM = pathlib.Path("/dev/shm")
PATIENCE = 180 * float(os.environ.get("PS_SHM_TEST_PATIENCE", "1"))  # seconds until what has not ended hangs
SHM_BYTES, DISK_BYTES = 512 << 20, 64 << 20
WORKERS_OPTIONS = ("--model", "--data", "--count-size", "--steps", "--batch", "--count-interval", "--delay", "--max-rows", "--evict",
                   "--admit-after", "--dtype")
ENDS = (0, 1, 130, -signal.SIGTERM)  # the last: it was asked to leave before it had begun to listen
READERS = (["ls"], ["show"], ["vars"], ["workers"], ["events"], ["dump"], ["stats"], ["doctor"], ["metrics"])


class Failure(Exception):
    pass


class Result:
    def __init__(self):
        self.failure, self.kills, self.stops, self.asked, self.seconds = None, 0, 0, 0, 0.0


class Programs:
    """The built programs, and folders for what they write."""

    def __init__(self, tools, folder, has_own_mounts):
        self.tools, self.folder, self.disk, self.has_own_mounts = tools, folder, folder / "disk", has_own_mounts
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PS_SHM_")}

    def __enter__(self):
        self.disk.mkdir()
        if self.has_own_mounts:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "soak", self.disk], check=True)
        try:
            got = self.run("launch_shm", "--job", f"soak-{os.getpid()}", "--workers", 1, "--model", "count", "--steps",
                           1, "--device", "simulated")
        except BaseException:
            self.__exit__()
            raise
        self.has_simulated = got.returncode == 0
        self.has_keyed = "--keyed" in self.run("launch_shm", "--help-all").stdout
        return self

    def __exit__(self, *_):
        if self.has_own_mounts:
            subprocess.run(["umount", self.disk], check=True)

    def start(self, program, *words, **options):
        return subprocess.Popen([str(self.tools / program), *map(str, words)], stdin=subprocess.DEVNULL, text=True,
                                env=self.env, start_new_session=True, **options)

    def run(self, program, *words):
        process = self.start(program, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failure(f"{program} {' '.join(map(str, words))} hangs") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def children_of(pid):
    try:
        listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [int(child) for child in listed if state_of(int(child)) not in ("", "Z")]


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []  # it has ended meanwhile


def processes_of(job):
    return [int(process.name) for process in pathlib.Path("/proc").glob("[0-9]*") if job in words_of(process.name)]


class Round:
    def __init__(self, drawn, programs, result):
        self.drawn, self.programs, self.result = drawn, programs, result
        self.job = f"soak-{os.getpid()}-{drawn.seed}"
        self.rng = random.Random(drawn.seed)
        self.folder = programs.folder / self.job
        self.folder.mkdir()
        self.joined, self.damaged = [], []
        self.later = []  # (when, what to do, whether it undoes something)

    # Starting.

    def launch(self, name, *options):
        options = [str(word).replace("DISK", str(self.programs.disk)) for word in options]
        out, err = open(self.folder / f"{name}.out", "w"), open(self.folder / f"{name}.err", "w")
        with out, err:
            return self.programs.start("launch_shm", "--job", self.job, *options, "--json", stdout=out, stderr=err)

    def text_of(self, name):
        return (self.folder / name).read_text()

    def wait(self, process, what):
        try:
            return process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"{what} hangs\n{self.state()}") from None

    def state(self):
        """Of a job that hangs."""
        lines, pids = [self.text_of("job.err")[-2000:]], processes_of(self.job)
        for pid in pids:
            lines.append(f"  {pid} {' '.join(words_of(pid)[:1] + words_of(pid)[-9:])}: {state_of(pid)}")
        for command in ("workers", "events"):
            lines.append(self.programs.run("inspect_shm", command, "--wide", "--job", self.job).stdout[-3000:])
        for pid in pids if shutil.which("gdb") else []:
            got = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"], text=True,
                                 capture_output=True)
            lines += [f"  {pid}", *("    " + line for line in got.stdout.splitlines() if " in ps_shm::" in line)]
        return "\n".join(lines)

    # Orders.

    def do(self, order):
        getattr(self, "do_" + order.what)(order)

    def victim(self, order):
        children = children_of(self.launcher.pid)
        return children[order.number % len(children)] if children else None

    def send(self, pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def undo_after(self, seconds, do):
        self.later.append((time.monotonic() + seconds, do, True))

    def do_kill(self, order):
        if victim := self.victim(order):
            self.send(victim, signal.SIGKILL)
            self.result.kills += 1

    def do_stop(self, order):
        if victim := self.victim(order):
            self.send(victim, signal.SIGSTOP)
            self.result.stops += 1
            self.undo_after(order.detail, lambda: self.send(victim, signal.SIGCONT))

    def do_join(self, order):
        options = [str(word) for word in self.drawn.options]
        words = ["--keyed"] if "--keyed" in options else []
        for name, value in zip(options, options[1:]):
            if name in WORKERS_OPTIONS and (name != "--steps" or self.drawn.model == "count"):
                words += [name, value.replace("all:", "")]
        if self.drawn.trouble == "all":  # the rank of one who was killed is his successor's
            words += ["--rank", 8 + len(self.joined) % 8]
        err = self.folder / f"joined-{len(self.joined)}.err"
        with open(err, "w") as file:
            worker = self.programs.start("worker_shm", "--job", self.job, *words, "--wait-job", "1s", "--quiet",
                                         stdout=subprocess.DEVNULL, stderr=file)
        self.joined.append((worker, err))
        if order.detail:
            self.undo_after(order.detail, lambda: self.send(worker.pid, signal.SIGTERM))

    def inspect(self, *words):
        got = self.programs.run("inspect_shm", *words)
        if got.returncode not in (0, 1, 3) or "terminate" in got.stderr:
            raise Failure(f"inspect_shm {' '.join(words)}: exit code {got.returncode}\n{got.stderr}")
        return got

    def do_set(self, order):
        self.inspect("set", "--job", self.job, *order.detail)

    def do_read(self, order):
        words = [word.replace("JOB", self.job) for word in order.detail]
        of_one_job = words[0] not in ("ls", "diff", "doctor", "metrics", "publications")
        self.inspect(*words, *(["--job", self.job] if of_one_job else []))

    def do_fill(self, order):
        place, whole = (SHM, SHM_BYTES) if order.detail == "shm" else (self.programs.disk, DISK_BYTES)

        def resize(size):
            return subprocess.run(["mount", "-o", f"remount,size={size}", place], capture_output=True).returncode == 0
        status = os.statvfs(place)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        if resize(used + 4096 * (order.number % 8)):
            self.undo_after(0.3, lambda: resize(whole))

    def do_damage(self, order, places=1):
        rng = random.Random(order.number)
        for _ in range(places):
            files = self.segments()
            if not files:
                return
            path = SHM / rng.choice(files)
            try:
                with open(path, "r+b", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    at = rng.randrange(min(size, rng.choice([512, 8192, 1 << 17, size])) - 8)
                    before = os.pread(file.fileno(), 8, at)
                    after = {"bit": bytes([before[0] ^ 1 << rng.randrange(8)]), "zero": bytes(rng.choice([1, 4, 8])),
                             "ones": b"\xff" * rng.choice([1, 4, 8]), "word": rng.randbytes(4)}[order.detail]
                    os.pwrite(file.fileno(), after, at)
            except OSError:
                continue  # it has just been removed
            self.damaged.append(f"{path.name} at {at}: {before[:len(after)].hex()} -> {after.hex()}")

    def do_end(self, order):
        numbers = {"INT": [signal.SIGINT], "TERM": [signal.SIGTERM], "KILL": [signal.SIGKILL],
                   "INT twice": [signal.SIGINT] * 2}[order.detail]
        self.send(self.launcher.pid, numbers[0])
        for number in numbers[1:]:
            self.undo_after(0.6, lambda: self.send(self.launcher.pid, number))

    # The round.

    def segments(self):
        return sorted(path.name for path in SHM.glob(f"ps_shm.{self.job}*"))

    def give_orders(self):
        begin = time.monotonic()
        wanted = 1 if self.drawn.is_elastic else self.drawn.workers
        while self.launcher.poll() is None and time.monotonic() < begin + PATIENCE:
            got = self.programs.run("inspect_shm", "workers", "--json", "--job", self.job)
            if got.returncode == 0 and len(json.loads(got.stdout)["workers"]) >= wanted:
                break
        begin = time.monotonic()
        self.later = [(begin + order.at, lambda order=order: self.do(order), False) for order in self.drawn.orders]
        while self.later:
            self.later.sort(key=lambda one: one[0])
            at, do, _ = self.later.pop(0)
            time.sleep(max(0.0, at - time.monotonic()))
            do()

    def run(self):
        drawn = self.drawn
        record = ["--record", self.folder / "record"] if drawn.replays else []
        self.launcher = self.launch("job", *drawn.options, *record)
        self.give_orders()
        code = self.end()
        self.check_end(code)
        if code == 0 and drawn.model != "count" and drawn.trouble != "damage":
            self.check_trained()
        if code == 0 and drawn.continues:
            self.check_continued()
        if drawn.keeps and drawn.trouble != "damage":
            self.check_kept()
        elif drawn.keeps and self.segments():
            self.use_damaged()
        self.remove()
        self.check_nothing_left()

    def end(self):
        if self.drawn.trouble == "damage":  # a job whose words have changed may wait for what never comes
            try:
                self.launcher.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.result.asked = 1
                self.send(self.launcher.pid, signal.SIGINT)
        code = self.wait(self.launcher, "the launch")
        for worker, err in self.joined:
            got = self.wait(worker, "a worker that joined")
            if got not in ENDS:
                raise Failure(f"a worker that joined: exit code {got}\n{err.read_text()[-2000:]}")
        return code

    def check_end(self, code):
        drawn, err = self.drawn, self.text_of("job.err")
        allowed = {0}
        if drawn.trouble in ("full", "damage") or (drawn.trouble == "kills" and not drawn.restarts):
            allowed.add(1)
        if re.search(r"^launch_shm: ps was killed by signal 9 \(Killed\)$", err, re.MULTILINE):
            allowed.add(1)  # at the end of the job, when no worker was there that could go on
        if drawn.trouble == "ends" or self.result.asked:
            allowed |= {130, -signal.SIGKILL} if drawn.orders[0].detail == "KILL" else {130, 1}
        signals = {int(number) for number in re.findall(r"killed by signal (\d+)", err)}
        signals -= {signal.SIGTERM}
        if self.result.kills or drawn.trouble in ("ends", "damage"):
            signals -= {signal.SIGKILL}
        if code not in allowed or signals or re.search("terminate called|Sanitizer|assert", err, re.IGNORECASE):
            damage = "\n".join(self.damaged)
            raise Failure(f"exit code {code}, of {sorted(allowed)}\n{err[-4000:]}\n{damage}")

    def check_trained(self):
        if not (printed := self.text_of("job.out")):
            raise Failure(f"exit code 0, and it prints no result\n{self.text_of('job.err')[-4000:]}")
        found = json.loads(printed)
        loss = found["training_loss"]
        if loss is None or not math.isfinite(loss):
            raise Failure(f"the training loss is {loss}")
        if self.drawn.compares:
            again = self.launch("again", *self.drawn.options)
            code, other = self.wait(again, "the same launch without trouble"), self.text_of("again.out")
            if code != 0 or json.loads(other)["digest"] != found["digest"]:
                raise Failure(f"the same launch without trouble: exit code {code}, digest {found['digest']} and then\n"
                              f"{other}\n{self.text_of('again.err')}")
        if self.drawn.replays:
            again = self.launch("again", "--replay", self.folder / "record")
            if self.wait(again, "the replay") != 0:
                raise Failure(f"the replay fails\n{self.text_of('again.err')}")

    def check_continued(self):
        """Another launch begins with the rows of the last checkpoint, and ends as well."""
        again = self.launch("continued", *self.drawn.continues)
        code, printed = self.wait(again, "the launch that goes on from a checkpoint"), self.text_of("continued.out")
        found = json.loads(printed) if code == 0 and printed else {}
        if not found.get("first_step") or found["training_loss"] is None or not math.isfinite(found["training_loss"]):
            raise Failure(f"the launch that goes on from a checkpoint: exit code {code}\n{printed[-2000:]}\n"
                          f"{self.text_of('continued.err')[-4000:]}")

    def check_kept(self):
        """Each update that was acknowledged is there, and none that was not begun."""
        def look(*words):
            got = self.programs.run("inspect_shm", *words, "--json", "--job", self.job)
            if got.returncode not in (0, 3):
                raise Failure(f"inspect_shm {words[0]}: exit code {got.returncode}\n{got.stderr}")
            return json.loads(got.stdout)
        workers = look("workers")["workers"]
        done, begun, dropped = (sum(worker[key] for worker in workers) for key in ("steps", "pushes", "dropped"))
        [variable] = look("dump", "--limit", "1")["variables"]
        least, most = variable["min"], variable["max"]
        facts = f"from {least} to {most}: {done} acknowledged, {dropped} dropped, {begun} begun\n{workers}"
        if not done <= least <= most <= begun:
            raise Failure(f"values {facts}")
        may_be_split = dropped and self.drawn.mode == "sync, atomic"  # a late gradient may be in some chunks
        # A worker that is asked to end while it waits in step() has published its gradient, which counts.
        if not self.result.kills and not may_be_split and not done <= least == most <= begun - dropped:
            raise Failure(f"nobody was killed, and values are {facts}")
        [last] = look("doctor")["jobs"]
        in_doubt = last["last"]["buffers_in_doubt"]
        if last["problem"] or in_doubt > 2 * self.result.kills:
            raise Failure(f"{in_doubt} buffers in doubt after {self.result.kills} kills; {last['problem']}")

    def use_damaged(self):
        """A dead job, damaged further: everybody who looks at it, takes it over or trains on works or gets an error."""
        for order in self.drawn.orders:
            self.do_damage(order, 4)
        for words in READERS:
            self.do_read(type(self.drawn.orders[0])(0, "read", 0, words))
        server = self.programs.start("ps_shm", "--job", self.job, "--adopt", "--linger", "0.2s", "--workers", 1,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.do_join(type(self.drawn.orders[0])(0, "join", 0, 3.0))
        worker, err = self.joined[-1]
        try:
            worker.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.send(worker.pid, signal.SIGTERM)
        if self.wait(worker, "a worker of a damaged job") not in ENDS:
            raise Failure(f"a worker of a damaged job: exit code {worker.returncode}\n{err.read_text()}")
        self.send(server.pid, signal.SIGTERM)
        if self.wait(server, "a ps of a damaged job") not in ENDS:
            raise Failure(f"a ps of a damaged job: exit code {server.returncode}\n{server.stderr.read()}")

    def remove(self):
        is_damaged = self.drawn.trouble == "damage"
        if self.segments() and (self.drawn.keeps or is_damaged):
            force = ["--force"] if is_damaged else []
            got = self.programs.run("inspect_shm", "rm", "--yes", *force, "--job", self.job)
            if got.returncode != 0:
                raise Failure(f"inspect_shm rm: exit code {got.returncode}\n{got.stderr}")

    def check_nothing_left(self):
        end = time.monotonic() + PATIENCE
        while left := [*processes_of(self.job), *self.segments()]:
            if time.monotonic() > end:
                raise Failure(f"it leaves {left}\n{self.text_of('job.err')}")
            time.sleep(0.01)

    def clear_up(self):
        for _, do, is_undone in self.later:  # processes go on, file systems get their size back
            if is_undone:
                do()
        for pid in processes_of(self.job):
            self.send(pid, signal.SIGKILL)
        for name in self.segments():
            (SHM / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        shutil.rmtree(self.programs.disk / "checkpoints", ignore_errors=True)


def play(drawn, programs):
    result, begin = Result(), time.monotonic()
    played = Round(drawn, programs, result)
    try:
        played.run()
    except Failure as failure:
        result.failure = str(failure)
    finally:
        played.clear_up()
        result.seconds = time.monotonic() - begin
    return result

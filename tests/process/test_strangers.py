"""Attacks by another user of the machine: each row of the table in docs/faults.md is a test that runs as that user."""
import ctypes
import errno
import fcntl
import grp
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import unittest

import support
from support import SHM, ProcessTest

OWNER, STRANGER = 65531, 65532  # user ids without an account
GROUP = "users"
PAGE = support.SOURCE / "docs" / "faults.md"
ROWS = re.findall(r"^\| (.*?) \|", re.search(r"\| another user \|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE.read_text())[1], re.MULTILINE)
tested = []


def row(text):
    """Marks a test with the row of the table that it covers."""
    tested.append(text)
    return lambda test: test


def why_not():
    """The reason why this user cannot become another one, or None."""
    if os.geteuid() != 0:
        return "skipped: only root can become another user"
    try:
        grp.getgrnam(GROUP)
    except KeyError:
        return f"skipped: there is no group '{GROUP}'"
    try:
        subprocess.run(["true"], user=OWNER, group=OWNER, extra_groups=[], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"skipped: this root cannot become another user: {error}"
    return None


def as_user(user, act, groups=()):
    """Returns the result of act() in a process of that user as a text; for an OSError its name."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups), os.setgid(user), os.setuid(user)
            try:
                said = str(act())
            except OSError as error:
                said = errno.errorcode[error.errno]
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def is_folder(path):
    """Does not follow links: where protected_symlinks is 1, nobody may follow another user's link in /dev/shm."""
    return stat.S_ISDIR(path.lstat().st_mode)


def remove(path):
    path.rmdir() if is_folder(path) else path.unlink()


def make_file(path, mode, content=b"x" * 8192):
    path.write_bytes(content)
    path.chmod(mode)


class Table(unittest.TestCase):
    def test_each_row_has_a_test(self):
        self.assertEqual(sorted(set(tested)), sorted(ROWS))


@unittest.skipIf(why_not(), why_not() or "")
class Strangers(ProcessTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ps-test-")  # for programs that every user may read
        os.chmod(cls.folder, 0o755)
        for program in ("ps_shm", "worker_shm", "inspect_shm"):
            shutil.copy(support.TOOLS / program, cls.folder)
        cls.tools, support.TOOLS = support.TOOLS, pathlib.Path(cls.folder)
        cls.in_group = [grp.getgrnam(GROUP).gr_gid]

    @classmethod
    def tearDownClass(cls):
        support.TOOLS = cls.tools
        shutil.rmtree(cls.folder)

    def setUp(self):
        super().setUp()
        self.name = SHM / f"ps_shm.{self.job}"

    def tearDown(self):
        for path in SHM.glob(f"ps_shm.{self.job}*"):
            if is_folder(path):
                path.rmdir()
        super().tearDown()

    def start_as(self, user, program, *arguments, groups=()):
        return self.start(program, "--job", self.job, *arguments, user=user, group=user, extra_groups=list(groups))

    def run_as(self, user, program, *arguments, groups=()):
        return support.finish(self.start_as(user, program, *arguments, groups=groups))

    def inspect_as(self, user, command, *arguments, groups=()):
        return support.run("inspect_shm", command, "--job", self.job, *arguments, user=user, group=user,
                           extra_groups=list(groups))

    def serve_as(self, user, *arguments, groups=()):
        """Starts a ps as that user and waits until it is ready."""
        ps = self.start_as(user, "ps_shm", *arguments, groups=groups)
        self.assertIn(self.job, support.read_line(ps.stdout))
        return ps

    def work_as(self, user, *arguments, groups=()):
        """Starts a worker with the count model, which runs until it is ended, and waits for its first step."""
        worker = self.start_as(user, "worker_shm", "--model", "count", "--steps", 10**9, "--count-interval", "1ms", *arguments,
                               groups=groups)
        support.wait_until(lambda: any(w["steps"] for w in support.workers_of(self.job) or []), "the worker works")
        return worker

    def end(self, *processes):
        """Interrupts the processes; a ps may have ended before, together with its last worker."""
        for process in processes:
            process.send_signal(signal.SIGINT)
            self.assertIn(support.finish(process)[0], (0, 130))

    def state(self):
        code, out, err = support.run("inspect_shm", "ls", "--json")
        self.assertEqual(code, 0, err)
        return next(job["state"] for job in json.loads(out)["jobs"] if job["job"] == self.job)

    def orphaned_job_of_stranger(self, *settings):
        ps = self.serve_as(STRANGER, "--workers", "1", *settings)
        worker = self.work_as(STRANGER)
        ps.kill()
        ps.communicate()
        self.assertEqual(self.state(), "orphaned")
        return worker

    def dead_job_of_stranger(self):
        worker = self.orphaned_job_of_stranger()
        worker.kill()
        worker.communicate()
        self.assertEqual(self.state(), "dead")

    def assert_refused(self, result):
        self.assert_fails(1, result, f"user {STRANGER}")

    @row("opens, cuts off, renames, removes or links to a segment, or changes its mode")
    def test_the_kernel_refuses_what_is_done_to_files(self):
        ps = self.serve_as(OWNER, "--workers", "1")
        other = SHM / f"ps_shm.{self.job}-other"
        for name in support.segments(self.job):
            path = SHM / name
            for act in (lambda: os.open(path, os.O_RDONLY), lambda: os.open(path, os.O_WRONLY), lambda: os.truncate(path, 0),
                        lambda: os.chmod(path, 0o666)):
                self.assertIn(as_user(STRANGER, act), ("EACCES", "EPERM"))
            for act in (lambda: os.unlink(path), lambda: os.rename(path, other)):
                self.assertEqual(as_user(STRANGER, act), "EPERM")
            if pathlib.Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1":
                self.assertEqual(as_user(STRANGER, lambda: os.link(path, other)), "EPERM")
        self.end(ps)

    @row("has a second, hard link to a segment")
    def test_a_hard_link_harms_nobody(self):
        ps = self.serve_as(OWNER, "--workers", "1")
        job, other = self.job, f"{self.job}-other"
        for name in support.segments(job):
            os.link(SHM / name, SHM / name.replace(job, other))  # simulates a kernel that does not protect hard links
        self.end(self.work_as(OWNER))
        self.job = other
        self.assert_fails(1, self.run_as(OWNER, "worker_shm", "--model", "count", "--steps", "1"), "damaged")
        self.assertIn("damaged", self.run_as(OWNER, "ps_shm", "--workers", "1")[2])
        self.job = job
        self.end(ps)
        left = support.segments(job)
        for name in left:
            (SHM / name).unlink()
        self.assertEqual(left, support.segments(other) or [f"ps_shm.{other}", f"ps_shm.{other}.0"])

    @row("starts a worker, a ps or the inspector on the job")
    def test_the_programs_say_whose_the_job_is(self):
        ps = self.serve_as(OWNER, "--workers", "1")
        for result in (self.run_as(STRANGER, "worker_shm", "--model", "count", "--steps", "1"),
                       self.run_as(STRANGER, "ps_shm", "--workers", "1"),
                       self.run_as(STRANGER, "ps_shm", "--workers", "1", "--adopt"),
                       *(self.inspect_as(STRANGER, *command)
                         for command in (["show"], ["vars"], ["workers"], ["dump"], ["stats"], ["events", "--follow"],
                                         ["metrics"], ["doctor", "--nan-watch", "1s"], ["set", "lr=1"], ["rm"],
                                         ["rm", "--force"]))):
            self.assert_fails(1, result, f"user {OWNER}")
        self.assert_fails(1, support.run("inspect_shm", "diff", self.job, f"{self.job}@snapshot", user=STRANGER,
                                         group=STRANGER, extra_groups=[]), f"user {OWNER}")
        code, out, err = self.inspect_as(STRANGER, "doctor", "--repair")
        self.assertIn("no permission", out, err)
        self.assertEqual(self.state(), "live")
        self.end(ps)

    @row("takes the job's name with a file, a folder, a FIFO, a socket or a link")
    def test_a_name_that_is_taken_is_refused_whoever_asks(self):
        with tempfile.NamedTemporaryFile(dir=SHM, prefix="ps-test-") as precious:
            precious.write(b"precious"), precious.flush()
            os.chmod(precious.name, 0o666)
            for make in (lambda: make_file(self.name, 0o600), lambda: make_file(self.name, 0o666),
                         lambda: make_file(self.name, 0o660, b""), lambda: os.mkdir(self.name, 0o777),
                         lambda: os.mkfifo(self.name, 0o600), lambda: (os.mkfifo(self.name), os.chmod(self.name, 0o666)),
                         lambda: make_socket(self.name), lambda: os.symlink(precious.name, self.name),
                         lambda: os.symlink("/dev/zero", self.name)):
                as_user(STRANGER, make)
                self.assertTrue(os.path.lexists(self.name))
                for user in (OWNER, 0):
                    self.assert_refused(self.run_as(user, "ps_shm", "--workers", "1"))
                    self.assert_refused(self.run_as(user, "worker_shm", "--model", "count", "--steps", "1"))
                    self.assertEqual(self.inspect_as(user, "show")[0], 1)
                self.assertTrue(os.path.lexists(self.name))
                remove(self.name)
            self.assertEqual(pathlib.Path(precious.name).read_bytes(), b"precious")

    @row("takes the name of a shard")
    def test_a_shard_whose_name_is_taken_ends_the_ps(self):
        for make in (make_file, lambda path, mode: os.mkdir(path, mode), lambda path, mode: os.symlink("/dev/null", path)):
            shard = SHM / f"ps_shm.{self.job}.0"
            as_user(STRANGER, lambda: make(shard, 0o666))
            self.assertIn(f"user {STRANGER}", self.run_as(OWNER, "ps_shm", "--workers", "1")[2])
            self.assertEqual(support.segments(self.job), [shard.name])
            remove(shard)

    @row("takes the name of a gradient segment")
    def test_a_gradient_segment_gets_another_number(self):
        ps = self.serve_as(OWNER, "--workers", "1", "--mode", "sync")
        as_user(STRANGER, lambda: make_file(SHM / f"ps_shm.{self.job}.w0.1", 0o666))
        self.end(self.work_as(OWNER), ps)
        self.assertEqual(support.segments(self.job), [f"ps_shm.{self.job}.w0.1"])
        (SHM / f"ps_shm.{self.job}.w0.1").unlink()

    @row("shares a job of that name with everybody or with a group")
    def test_only_those_who_name_the_group_join(self):
        ps = self.serve_as(STRANGER, "--workers", "1", "--group", GROUP, groups=self.in_group)
        working = ["worker_shm", "--model", "count", "--steps", "1"]
        self.assert_refused(self.run_as(OWNER, *working, groups=self.in_group))
        self.assert_refused(self.run_as(OWNER, *working, "--group", "daemon", groups=self.in_group))
        self.assert_refused(self.run_as(0, *working))
        self.assert_refused(self.run_as(OWNER, "ps_shm", "--workers", "1", groups=self.in_group))
        self.assert_refused(self.inspect_as(OWNER, "set", "lr=0.5", groups=self.in_group))
        self.assertEqual(self.inspect_as(OWNER, "set", "--group", GROUP, "lr=0.5", groups=self.in_group)[0], 0)
        for name in support.segments(self.job):
            (SHM / name).chmod(0o666)
        self.assert_refused(self.run_as(OWNER, *working, groups=self.in_group))
        self.assert_fails(1, self.run_as(OWNER, *working, "--group", GROUP, groups=self.in_group), "every user")
        for name in support.segments(self.job):
            (SHM / name).chmod(0o660)
        self.assertEqual(self.run_as(OWNER, *working, "--group", GROUP, groups=self.in_group)[0], 0)
        self.end(ps)

    def test_a_ps_that_takes_over_the_job_of_another_user_of_the_group_publishes_it(self):
        ps = self.serve_as(STRANGER, "--workers", "1", "--group", GROUP, groups=self.in_group)
        worker = self.work_as(STRANGER, "--group", GROUP, groups=self.in_group)
        ps.kill()
        ps.communicate()
        ps = self.serve_as(OWNER, "--adopt", "--workers", "1", "--group", GROUP, "--publish", self.job,
                           "--publish-every", "1steps", groups=self.in_group)

        def generation():
            code, out, err = support.run("inspect_shm", "publications", "--publication", self.job, "--json", user=OWNER,
                                         group=OWNER, extra_groups=self.in_group)
            return code == 0 and [row["generation"] for row in json.loads(out)["publications"]] > [0]

        support.wait_until(generation, "a generation is published")
        self.end(worker, ps)
        self.assertEqual(self.inspect_as(STRANGER, "rm").code, 0)  # only the owner of its segments can remove them

    def test_who_names_the_group_is_told_which_workers_keep_an_ended_job(self):
        ps = self.serve_as(STRANGER, "--workers", "1", "--group", GROUP, groups=self.in_group)
        worker = self.work_as(STRANGER, groups=self.in_group)
        worker.send_signal(signal.SIGSTOP)  # it does not notice that the job has been ended
        ps.send_signal(signal.SIGINT)
        support.wait_until(lambda: '"ended"' in self.inspect_as(STRANGER, "events", "--json")[1], "the job was ended")
        ps.kill()
        ps.communicate()
        keeps = f"was ended, and worker 0 (process {worker.pid}) has not left it yet"
        for program in (["ps_shm"], ["worker_shm", "--wait-job", "100ms"]):
            self.assert_fails(1, self.run_as(OWNER, *program, "--group", GROUP, groups=self.in_group), keeps)
        worker.send_signal(signal.SIGCONT)
        self.end(worker)

    @row("leaves a job without a ps for root to take over")
    def test_root_takes_nobodys_job_over(self):
        worker = self.orphaned_job_of_stranger()
        for result in (self.run_as(0, "ps_shm", "--workers", "1"), self.run_as(0, "ps_shm", "--workers", "1", "--adopt"),
                       self.run_as(0, "worker_shm", "--model", "count", "--steps", "1"), self.inspect_as(0, "set", "lr=1")):
            self.assert_refused(result)
        code, out, err = self.inspect_as(0, "show", "--json")
        self.assertEqual((code, json.loads(out)["servers"], self.state()), (0, 1, "orphaned"), err)
        self.end(worker)
        self.assertEqual(self.inspect_as(STRANGER, "rm")[0], 0)

    @row("leaves a dead job of that name")
    def test_root_removes_a_strangers_job_only_when_asked_to(self):
        for remove in (["rm"], ["rm", "--force"], ["doctor", "--repair"]):
            with self.subTest(remove):
                self.dead_job_of_stranger()
                left = support.segments(self.job)
                self.assert_refused(self.run_as(0, "ps_shm", "--workers", "1"))
                self.assertEqual(support.segments(self.job), left)
                self.assertEqual(self.inspect_as(0, *remove)[0], 0)
                self.assertEqual(support.segments(self.job), [])

    @row("says that their segments are huge, or makes them files of holes")
    def test_the_inspector_reads_no_holes(self):
        self.dead_job_of_stranger()
        shard = SHM / f"ps_shm.{self.job}.0"
        status = os.statvfs(SHM)
        as_user(STRANGER, lambda: os.truncate(shard, status.f_blocks * status.f_frsize))
        before = shard.stat().st_blocks
        for command in (["show"], ["vars"], ["dump"], ["doctor"]):
            self.assertIn("damaged", "".join(self.inspect_as(0, *command)[1:]))
        self.assertEqual(shard.stat().st_blocks, before)
        as_user(STRANGER, lambda: os.truncate(self.name, 2**62))
        self.assertIn("damaged", "".join(self.inspect_as(0, "show")[1:]))
        self.assertEqual(self.inspect_as(0, "rm", "--force")[0], 0)

    @row("cuts their segments off before root looks at them")
    def test_the_inspector_says_that_they_are_damaged(self):
        self.dead_job_of_stranger()
        for name, size in ((f"ps_shm.{self.job}.0", 4096), (f"ps_shm.{self.job}", 4096), (f"ps_shm.{self.job}", 1)):
            as_user(STRANGER, lambda: os.truncate(SHM / name, size))
            self.assert_fails(1, self.inspect_as(0, "show"), "damaged")
        self.assertEqual(self.inspect_as(0, "doctor", "--repair")[0], 0)

    @row("holds a lease on a file of that name")
    def test_nobody_waits_for_a_lease(self):
        as_user(STRANGER, lambda: make_file(self.name, 0o666))
        ready, end = os.pipe(), os.pipe()

        def hold():
            signal.signal(signal.SIGIO, signal.SIG_IGN)
            file = os.open(self.name, os.O_RDWR)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(ready[1], b".")
            os.read(end[0], 1)

        holder = os.fork()
        if holder == 0:
            as_user(STRANGER, hold)
            os._exit(0)
        os.close(ready[1])
        if not os.read(ready[0], 1):
            self.skipTest("skipped: no lease is to be had here")
        for user in (OWNER, 0):
            self.assert_refused(self.run_as(user, "ps_shm", "--workers", "1"))
            self.assert_refused(self.run_as(user, "worker_shm", "--model", "count", "--steps", "1"))
        self.assertEqual(support.run("inspect_shm", "ls")[0], 0)
        os.write(end[1], b".")
        os.waitpid(holder, 0)
        for descriptor in (ready[0], *end):
            os.close(descriptor)
        self.name.unlink()

    @row("puts links where a segment is removed")
    def test_removing_takes_names_and_never_what_they_lead_to(self):
        with tempfile.NamedTemporaryFile(dir=SHM, prefix="ps-test-") as precious:
            precious.write(b"precious"), precious.flush()
            ps = self.serve_as(0, "--workers", "1")
            as_user(STRANGER, lambda: os.symlink(precious.name, SHM / f"ps_shm.{self.job}.7"))
            os.link(precious.name, SHM / f"ps_shm.{self.job}.w3.1")
            self.end(ps)
            self.assertEqual(support.segments(self.job), [])
            as_user(STRANGER, lambda: os.symlink(precious.name, self.name))
            self.assertEqual(self.inspect_as(0, "rm", "--force")[0], 0)
            self.assertEqual(support.segments(self.job), [])
            self.assertEqual(pathlib.Path(precious.name).read_bytes(), b"precious")

    @row("is of the job's group, and leaves a file that the ps cannot remove")
    def test_what_a_member_leaves_is_emptied_if_it_is_a_segment(self):
        ps = self.serve_as(OWNER, "--workers", "1", "--group", GROUP, groups=self.in_group)
        segment, file = SHM / f"ps_shm.{self.job}.w3.1", SHM / f"ps_shm.{self.job}.w4.1"
        shutil.copy(self.name, segment)
        make_file(file, 0o660)
        for path in (segment, file):
            os.chown(path, STRANGER, self.in_group[0])
            path.chmod(0o660)
        ps.send_signal(signal.SIGINT)
        code, out, err = support.finish(ps)
        self.assertEqual((code, segment.stat().st_size, file.stat().st_size), (130, 0, 8192))
        self.assertIn(f"{segment} belongs to user {STRANGER}", err)
        segment.unlink(), file.unlink()

    @row("takes a descriptor from a process of the job")
    def test_the_kernel_gives_no_descriptor_away(self):
        ps = self.serve_as(OWNER, "--workers", "1")
        numbers = [number for number in os.listdir(f"/proc/{ps.pid}/fd")
                   if os.readlink(f"/proc/{ps.pid}/fd/{number}").startswith(str(SHM))]
        self.assertTrue(numbers)
        libc = ctypes.CDLL(None, use_errno=True)

        def fetch(number):
            if libc.syscall(438, os.pidfd_open(ps.pid), int(number), 0) < 0:  # pidfd_getfd
                raise OSError(ctypes.get_errno(), "pidfd_getfd")

        for number in numbers:
            # With /proc mounted hidepid=invisible the path does not exist for the other user.
            self.assertIn(as_user(STRANGER, lambda: os.open(f"/proc/{ps.pid}/fd/{number}", os.O_RDWR)),
                          ("EACCES", "ENOENT"))
            self.assertEqual(as_user(STRANGER, lambda: fetch(number)), "EPERM")
        self.end(ps)

    @row("is handed a descriptor by a process of the job")
    def test_a_holder_of_a_descriptor_counts_as_one_of_the_job(self):
        ps = self.serve_as(OWNER, "--workers", "1")
        with open(self.name, "r+b") as handed:
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 100, 1, 0)  # the lock byte of some rank
            set_lock = getattr(fcntl, "F_OFD_SETLK", 37)
            self.assertNotIn(as_user(STRANGER, lambda: fcntl.fcntl(handed, set_lock, lock)), ("EACCES", "EPERM"))
            self.end(ps)
            self.assert_fails(1, self.inspect_as(OWNER, "rm"), "alive")
        self.assertEqual(self.inspect_as(OWNER, "rm")[0], 0)
        self.assertEqual(support.segments(self.job), [])


if __name__ == "__main__":
    support.main()

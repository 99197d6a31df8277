"""inspect_shm watch on real jobs: the screen of a terminal, page by page, and the effect of its keys."""
import json
import os
import pathlib
import re
import signal
import time

import support
from full_screen import FullScreen
from support import Peer, ProcessTest, run

PAGES = ("overview", "workers", "variables", "chunks", "rows", "events")


class WatchTest(ProcessTest):
    def watch(self, columns=110, rows=30):
        screen = FullScreen(columns, rows, "inspect_shm", "watch", "--job", self.job)
        self.addCleanup(screen.__exit__)
        screen.wait_for(lambda text: self.job in text and "q quit" in text, "the first page")
        return screen

    def quit(self, screen):
        screen.press("q")
        self.assertEqual(screen.finish(), 0)
        self.assertFalse(screen.screen.cursor.hidden)

    def start_job(self, workers, *arguments, per_worker=()):
        """Starts a ps and its workers and waits until they train; returns the workers by rank. Each is a child of this
        test."""
        self.start_ps("--workers", str(workers), *arguments)
        found = []
        for rank in range(workers):
            found.append(self.start("worker_shm", "--job", self.job, "--rank", str(rank), *per_worker))
        support.wait_training(self.job, workers)
        return found

    def start_launcher(self, *arguments):
        launcher = self.start("launch_shm", "--job", self.job, "--steps", "100000000", *arguments)
        support.wait_until(lambda: any(w["steps"] > 0 for w in support.workers_of(self.job) or []), "they train")
        return launcher


class Pages(WatchTest):
    def assert_fits(self, screen):
        lines = screen.lines()
        self.assertEqual(len(lines), screen.rows)
        self.assertIn(self.job, lines[0])
        self.assertRegex(lines[-1], r"^q quit")

    def wait_for_all(self, screen, *patterns):
        """Waits until the page shows all patterns: values appear with the first poll of the job, rates from the second
        one on."""
        screen.wait_for(lambda text: all(re.search(pattern, text, re.MULTILINE) for pattern in patterns), patterns)
        self.assert_fits(screen)

    def test_every_page_of_a_dense_job_at_two_sizes(self):
        self.start_launcher("--workers", "3", "--delay", "all:1ms")
        for columns, rows in ((120, 36), (60, 14)):
            with self.subTest(columns=columns):
                screen = self.watch(columns, rows)
                self.wait_for_all(screen, r"steps/s +[1-9]", r"mode +async +lr 0\.1", r"loss +\d", r"workers +3 alive of 3",
                                  r"memory +[\d.]+ KiB +values 37\.5 KiB", r"staleness +mean")
                screen.press("2")
                self.wait_for_all(screen, r"RANK. +PID", r"^ +0 +\d+ +.*(computing|pulling|pushing)", r"^ +2 +\d+ +")
                screen.press("3")
                self.wait_for_all(screen, r"hid_w .* [1-9][\d.]*k? +", "^hid_b ", "^hid_w ", "^sm_b ", "^sm_w ")
                screen.press("4")
                self.wait_for_all(screen, r"^ +0 [▁▂▃▄▅▆▇█]{5}$", r"variable hid_w +\[64,128\] +versioned +5 chunks",
                                  r"per chunk: [1-9]")
                screen.press("5")
                screen.wait_for(lambda text: "no rows" in text, "that it has no rows")
                screen.press("6")
                self.wait_for_all(screen, "worker 2", r"^\d\d:\d\d:\d\d .* initialised vari(able hid_w)?$")
                self.quit(screen)

    def test_statistics_are_those_of_the_values_whatever_their_type(self):
        peer = Peer(self, "declare", self.job)  # a variable of each type, with the values 1, 2 and 3
        screen = self.watch(170, 30)
        screen.press("3")
        for dtype in ("float32", "float64", "bfloat16", "float16", "int64", "int8", "uint16", "bool"):
            screen.wait_for(lambda text: re.search(rf"(?m)^{dtype} +{dtype} +\[3\] .* 3\.74 +1 +3 +0 +0 .* all$", text), dtype)
        self.quit(screen)
        self.assertEqual(peer.end(), 0)

    def test_the_hottest_rows_of_a_table(self):
        self.start_launcher("--workers", "2", "--model", "mf", "--delay", "all:1ms")
        screen = self.watch()
        screen.press("5")
        screen.wait_for(lambda text: "variable " in text, "a variable")
        for _ in range(10):  # until a variable has rows
            if "no rows" not in screen.text():
                break
            screen.press(">")
            screen.read()
        self.wait_for_all(screen, r"^ *\d+ +>?[\d.]+k? +-?[\d.]+", r"[1-9][\d.]*k? pushes of blocks a second",
                          r"hottest blocks: +rows \d+ to \d+ \([\d.]+k?/s\)", "TOUCHED/S")
        self.quit(screen)

    def test_it_follows_a_terminal_that_is_resized(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = self.watch(120, 36)
        screen.press("2")
        screen.wait_for(lambda text: "COMP PULL" in text, "all columns")
        for columns, rows in ((50, 10), (20, 5), (100, 40)):
            screen.resize(columns, rows)
            screen.wait_for(lambda text: text.splitlines()[0].startswith(f" {self.job}"[:columns])
                            and screen.lines()[-1].startswith("q quit"), f"{columns} by {rows}")
            self.assertNotEqual(screen.lines()[2], "")
        screen.wait_for(lambda text: "COMP PULL" in text, "all columns again")
        self.quit(screen)

    def test_lists_are_sorted_and_filtered(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = self.watch()
        screen.press("3")
        screen.wait_for(lambda text: "sm_w" in text, "the variables")
        screen.press("r")
        screen.wait_for(lambda text: re.search("(?s)sm_w.*hid_w", text), "them in reverse")
        screen.press("/", "hid", "enter")
        screen.wait_for(lambda text: "filter: hid" in text and "sm_w" not in text and "hid_w" in text, "some of them")
        screen.press("escape")
        screen.wait_for(lambda text: "sm_w" in text, "all of them")
        self.quit(screen)


class Stopped(WatchTest):
    @support.measures_time
    def test_a_stopped_worker_is_named_within_two_refreshes_of_the_screen(self):
        workers = self.start_job(3, "--mode", "sync", "--steps", "100000000")
        screen = self.watch()

        def took(fact, what):
            began = time.monotonic()
            screen.wait_for(fact, what)
            return time.monotonic() - began

        steps_of = lambda text: re.search(r"step +(\d+)", text)[1]
        moments = []
        for _ in range(3):
            shown = steps_of(screen.text())
            moments.append(took(lambda text: steps_of(text) != shown, "a later step"))
        workers[2].send_signal(signal.SIGSTOP)
        self.assertLess(took(lambda text: "has been stopped" in text, "the stopped worker"), 2.5 * max(moments))
        workers[2].send_signal(signal.SIGCONT)
        self.quit(screen)

    def test_a_stopped_worker_is_named_and_so_is_who_waits_for_it(self):
        workers = self.start_job(3, "--mode", "sync", "--steps", "100000000")
        screen = self.watch()
        screen.press("2")
        screen.wait_for(lambda text: "WAITING FOR" in text, "the workers")
        workers[2].send_signal(signal.SIGSTOP)
        alert = f"! worker 2 (process {workers[2].pid}) has been stopped"
        screen.wait_for(lambda text: alert in text, "the stopped worker")
        for rank in (0, 1):
            screen.wait_for(lambda text: re.search(rf"(?m)^ +{rank} .* waiting [\d.]+ s .* step \d+: rank 2$", text),
                            f"that worker {rank} waits for worker 2")
        screen.wait_for(lambda text: re.search(r"(?m)^ +2 .* stopped [1-9][\d.]* s", text), "for how long")
        workers[2].send_signal(signal.SIGCONT)
        screen.wait_for(lambda text: alert not in text, "that it goes on")
        self.quit(screen)

    def test_a_job_of_which_every_process_is_stopped_is_shown_as_such(self):
        self.start_job(3, "--steps", "100000000")
        for process in self.started:
            process.send_signal(signal.SIGSTOP)
        screen = self.watch()
        page = screen.wait_for(lambda text: "stopped: ranks 0, 1, 2" in text, "who is stopped")
        for rank in range(3):
            self.assertRegex(page, rf"! worker {rank} \(process \d+\) has been stopped")
        for key in "23456":
            screen.press(key)
            screen.wait_for(lambda text: "has been stopped for" in text and "(and 2 more)" in text, "each page")
        self.quit(screen)


class Actions(WatchTest):
    def rate(self):
        return json.loads(run("inspect_shm", "show", "--job", self.job, "--json")[1])["live"]["lr"]

    def test_a_setting_is_changed_after_a_yes(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = self.watch()
        for answer, rate in (("n", 0.1), ("y", 0.005)):
            screen.press("c")
            screen.wait_for(lambda text: "change a setting" in text, "the question for a setting")
            screen.press("lr=0.005", "enter")
            screen.wait_for(lambda text: "set lr=0.005? y: yes" in text, "the question whether")
            screen.press(answer)
            screen.wait_for(lambda text: ("nothing was done" if answer == "n" else "lr: 0.1") in text, "what came of it")
            self.assertAlmostEqual(self.rate(), rate)
        screen.wait_for(lambda text: "lr 0.005" in text, "the new rate")
        screen.press("c", "nonsense=1", "enter", "y")
        screen.wait_for(lambda text: "'nonsense' cannot be set" in text, "what can be set")
        self.quit(screen)

    def test_a_worker_is_ended_after_an_answer(self):
        workers = self.start_job(2, "--steps", "100000000", "--linger", "60")
        screen = self.watch()
        screen.press("2", "down", "x")
        screen.wait_for(lambda text: f"end worker 1 (process {workers[1].pid}) of job {self.job}?" in text, "the question")
        screen.press("n")
        screen.wait_for(lambda text: "nothing was done" in text, "that nothing was done")
        self.assertIsNone(workers[1].poll())
        screen.press("x", "t")
        screen.wait_for(lambda text: f"(process {workers[1].pid}) SIGTERM" in text, "that it was ended")
        support.wait_until(lambda: workers[1].poll() is not None, "the worker ends")
        self.assertIsNone(workers[0].poll())
        screen.wait_for(lambda text: re.search(r"(?m)^ +1 .* left ", text), "that it has left")
        screen.press("x")
        screen.wait_for(lambda text: "worker 1 is gone" in text, "that there is nobody to end")
        screen.press("up", "x", "k")
        support.wait_until(lambda: workers[0].poll() == -signal.SIGKILL, "the other one is killed")
        screen.wait_for(lambda text: f"worker 0 (process {workers[0].pid}) died" in text, "its death")
        self.quit(screen)

    def test_a_worker_of_another_pid_namespace_is_not_ended(self):
        apart = ["unshare", "--pid", "--fork", "--kill-child"]
        if not support.may_unshare(*apart[1:]):
            self.skipTest("no PID namespaces here")
        self.start_ps("--workers", "1", "--linger", "60")
        worker = self.start("unshare", *apart[1:], str(support.TOOLS / "worker_shm"), "--job", self.job)
        support.wait_training(self.job, 1)
        screen = self.watch()
        screen.press("2")
        screen.wait_for(lambda text: re.search(r"(?m)^ +0 +1 +-", text), "its pid over there, and no device")
        screen.press("x")
        screen.wait_for(lambda text: "worker 0 is process 1 of another PID namespace" in text, "the refusal")
        self.assertIsNone(worker.poll())
        self.quit(screen)


class Ends(WatchTest):
    def test_a_job_that_ends_stays_on_the_screen(self):
        launcher = self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = self.watch()
        launcher.send_signal(signal.SIGINT)
        screen.wait_for(lambda text: "removed" in text and "! the job has ended" in text, "the end")
        for key in "123456":
            screen.press(key)
            screen.wait_for(lambda text: "removed" in text, "its last state")
        self.quit(screen)

    def test_a_dead_job_is_shown_as_dead(self):
        workers = self.start_job(2, "--steps", "100000000")
        for process in self.started:
            process.kill()
            process.wait()
        screen = self.watch()
        page = screen.wait_for(lambda text: "no process of the job is alive" in text, "that it is dead")
        self.assertRegex(page, r" dead  ")
        self.assertIn(f"worker 0 (process {workers[0].pid}) died", page)
        for key in "23456":
            screen.press(key)
            screen.wait_for(lambda text: "no process of the job is alive" in text, "each page")
        self.quit(screen)
        code, out, err = run("inspect_shm", "watch", "--job", self.job)
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"^dead +step \d+ of 100000000 .* 0 of 2 workers .* ! no process of the job is alive")
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job)[0], 0)

    def leave_dead(self):
        self.start_job(1, "--steps", "100000000")
        for process in self.started:
            process.kill()
            process.wait()
        self.addCleanup(run, "inspect_shm", "rm", "--job", self.job, "--force")

    def test_a_segment_that_is_cut_off_meanwhile_ends_it_with_an_error(self):
        self.leave_dead()
        screen = self.watch()
        os.truncate(support.SHM / f"ps_shm.{self.job}.0", 4096)
        self.assertEqual(screen.finish(), 1)
        self.assertRegex(screen.shown,
                         rf"inspect_shm: /dev/shm/ps_shm\.{self.job}\.0 is damaged: it has been truncated")
        self.assertFalse(screen.screen.cursor.hidden)
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job, "--force")[0], 0)

    def test_a_job_of_another_layout_is_refused(self):
        self.leave_dead()
        with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
            control.seek(8)  # HeaderShm::layout_version
            control.write(b"\xff")
        self.assert_fails(1, run("inspect_shm", "watch", "--job", self.job), "layout version")
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job, "--force")[0], 0)

    def test_where_there_is_no_terminal_it_prints_a_line_a_second_until_the_job_ends(self):
        launcher = self.start_launcher("--workers", "2", "--delay", "all:1ms")
        lines = self.start("inspect_shm", "watch", "--job", self.job)
        first = [support.read_line(lines.stdout) for _ in range(3)]
        for line in first:
            self.assertRegex(line, r"^live +step \d+ of 100000000 +[\d.]+k? steps/s +2 of 2 workers +loss [\d.e-]+ +staleness")
        launcher.send_signal(signal.SIGINT)
        code, out, err = support.finish(lines)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out.splitlines()[-1], "^removed")
        self.assertNotIn("\x1b", "".join(first) + out)

    def test_a_terminal_that_cannot_move_its_cursor_gets_lines_too(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = FullScreen(120, 30, "inspect_shm", "watch", "--job", self.job, env={"TERM": "dumb"})
        self.addCleanup(screen.__exit__)
        screen.wait_for(lambda text: text.count("live   step") >= 2, "lines")

    def test_it_ends_with_its_terminal(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = FullScreen(80, 24, "inspect_shm", "watch", "--job", self.job)
        screen.wait_for(lambda text: "q quit" in text, "the first page")
        os.close(screen.here)
        self.assertEqual(screen.process.wait(support.PATIENCE), 0)

    def test_an_interrupt_gives_the_terminal_back(self):
        self.start_launcher("--workers", "2", "--delay", "all:1ms")
        screen = self.watch()
        self.assertTrue(screen.screen.cursor.hidden)
        screen.process.send_signal(signal.SIGINT)
        self.assertEqual(screen.finish(), 130)
        self.assertFalse(screen.screen.cursor.hidden)

    def test_there_is_no_such_job(self):
        self.assert_fails(1, run("inspect_shm", "watch", "--job", self.job), f"there is no job '{self.job}'")


class Cost(WatchTest):
    def test_it_maps_the_job_for_reading_only(self):
        self.start_launcher("--workers", "2", "--model", "mf", "--delay", "all:5ms")
        screen = self.watch()
        maps = pathlib.Path(f"/proc/{screen.process.pid}/maps").read_text()
        mapped = [line for line in maps.splitlines() if f"/dev/shm/ps_shm.{self.job}" in line]
        self.assertTrue(mapped)
        for line in mapped:
            self.assertRegex(line, r" r--s ")
        self.quit(screen)

    @support.measures_time
    def test_it_takes_little_of_a_processor(self):
        self.start_launcher("--workers", "2", "--model", "mf", "--delay", "all:5ms")
        screen = self.watch()
        screen.press("3")

        def seconds():
            fields = pathlib.Path(f"/proc/{screen.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        began, used = time.monotonic(), seconds()
        while time.monotonic() < began + 4:
            screen.read()
        share = (seconds() - used) / (time.monotonic() - began)
        self.assertLess(share, 0.1 * support.SLOWNESS)
        self.quit(screen)


if __name__ == "__main__":
    support.main()

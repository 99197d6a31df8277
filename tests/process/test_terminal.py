"""Output on terminals of several widths, with and without colours: the progress line, the inspector's tables, the
summary, --help."""
import os
import re
import signal

import streams
import support
import terminal
from support import ProcessTest, run
from terminal import Terminal, show

WIDTHS = (120, 80, 60, 40)
COLOUR = r"\x1b\[[0-9;]*m"


class Progress(ProcessTest):
    def launch(self, columns, **options):
        return Terminal(columns, "launch_shm", "--job", self.job, "--steps", "100000000", "--delay", "all:1ms", **options)

    def watch(self, screen, redraws=3):
        """Waits for this many redraws of the line; returns them."""
        before = len(screen.redraws())
        screen.read_until(lambda: len(screen.redraws()) >= before + redraws, "progress")
        return screen.redraws()[before:]

    def end(self, screen):
        screen.process.send_signal(signal.SIGINT)
        self.assertEqual(screen.finish(), 130)

    def assert_fit(self, redraws, columns):
        for line in redraws:
            # writing to the last column would make some terminals start a new line
            self.assertLess(len(line), columns, line)
            self.assertRegex(line, r"^step \d+")

    def test_it_is_one_line_of_any_width(self):
        for columns in (120, 80, 60, 40, 16):
            with self.subTest(columns), self.launch(columns) as screen:
                self.assert_fit(self.watch(screen, 4), columns)
                before_the_end = screen.shown
                self.end(screen)
                self.assertNotIn("\n", streams.without_waits(before_the_end))

    def test_it_has_all_where_there_is_room_and_the_most_needed_where_there_is_not(self):
        for columns, words in ((120, ("steps/s", "loss", "staleness", "3 of 3 workers", "left")),
                               (80, ("/s", "loss", "3/3 workers", "left")), (60, ("loss", "left")), (30, ())):
            with self.subTest(columns), self.launch(columns) as screen:
                line = self.watch(screen, 6)[-1]
                for word in words:
                    self.assertIn(word, line)
                self.end(screen)

    def test_it_follows_a_terminal_that_is_resized(self):
        with self.launch(120) as screen:
            self.assertGreater(len(self.watch(screen)[-1]), 80)
            for columns in (60, 80, 50):
                screen.resize(columns)
                self.watch(screen, 1)  # the first one may have been drawn before the resize
                self.assert_fit(self.watch(screen), columns)
            screen.resize(120)
            self.watch(screen, 1)
            self.assertGreater(len(self.watch(screen)[-1]), 80)
            self.end(screen)

    def test_columns_may_be_fewer_than_the_terminal_has(self):
        with self.launch(120, env={"COLUMNS": "50"}) as screen:
            self.assert_fit(self.watch(screen), 50)
            self.end(screen)
        with self.launch(70, env={"COLUMNS": "200"}) as screen:  # inherited from a wider terminal
            self.assert_fit(self.watch(screen), 70)
            self.end(screen)

    def test_it_has_a_bar_and_a_percentage(self):
        for language, marks in (("C.UTF-8", "█▏▎▍▌▋▊▉"), ("C", "#")):
            with self.subTest(language), Terminal(80, "launch_shm", "--job", self.job, "--steps", "200", "--delay", "all:20ms",
                                                  env={"LC_ALL": language, "NO_COLOR": "1"}) as screen:
                screen.read_until(lambda: any(re.match(rf"step \d+/200  \[[{marks}]+ *\]  \d+ %  ", line) for line in screen.redraws()), "a bar")
                self.assertEqual(screen.finish(), 0)

    def test_there_are_no_colours_and_no_escapes_but_on_a_terminal(self):
        for env, has_colours in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
            with self.subTest(env):
                with self.launch(120, env=env) as screen:
                    self.watch(screen)
                    self.end(screen)
                self.assertEqual(re.search(COLOUR, screen.shown) is not None, has_colours)
                with Terminal(80, "launch_shm", "--mode", "foo", env=env) as screen:
                    self.assertEqual(screen.finish(), 2)
                self.assertEqual(screen.shown.startswith("\x1b[31mlaunch_shm: --mode"), has_colours, screen.shown)
        code, out, err = run("launch_shm", "--job", self.job, "--model", "count", "--steps", "10")
        self.assertEqual(code, 0, err)
        self.assertNotIn("\x1b", out + err)
        self.assertNotIn("\r", out + err)


class Inspector(ProcessTest):
    def setUp(self):
        super().setUp()
        self.launcher = self.start("launch_shm", "--job", self.job, "--workers", "2", "--steps", "100000000", "--delay",
                                   "all:1ms", "--ps-tasks", "2", "--place", "hid_w=1,hid_b=0,sm_w=1,sm_b=0")
        support.wait_until(lambda: sum(w["steps"] > 0 for w in support.workers_of(self.job) or []) == 2, "both train")

    def tearDown(self):
        self.launcher.send_signal(signal.SIGINT)
        support.finish(self.launcher)
        super().tearDown()

    def test_no_line_is_wider_than_the_terminal(self):
        for command in (("ls",), ("doctor", "--job", self.job),
                        *((name, "--job", self.job) for name in ("show", "vars", "workers", "events", "dump")),
                        ("vars", "--placement", "--job", self.job)):
            for columns in WIDTHS:
                with self.subTest(command[0], columns=columns):
                    screen = show(columns, "inspect_shm", *command)
                    self.assertGreater(len(screen.lines()), 0)
                    for line in screen.lines():
                        self.assertLessEqual(len(line), columns, line)
                    self.assertNotRegex(screen.shown, COLOUR)

    def test_titles_are_whole_and_nothing_is_left_out(self):
        wide = run("inspect_shm", "vars", "--placement", "--job", self.job)[1].splitlines()
        for columns in WIDTHS:
            with self.subTest(columns=columns):
                lines = show(columns, "inspect_shm", "vars", "--placement", "--job", self.job).lines()
                height = len(lines) // len(wide)
                self.assertEqual(len(lines), height * len(wide))
                self.assertEqual(re.split(r"\s\s+", "  ".join(line.strip() for line in lines[:height])),
                                 re.split(r"\s\s+", wide[0].strip()))
                if columns == 80:
                    self.assertLessEqual(height, 2)

    def test_a_variable_is_one_line_without_empty_columns(self):
        names = ["hid_b", "hid_w", "sm_b", "sm_w"]
        for columns in (120, 80, 60):
            with self.subTest(columns=columns):
                titles, *rows, last = show(columns, "inspect_shm", "vars", "--job", self.job).lines()
                self.assertEqual(sorted(row.split()[0] for row in rows), names)
                self.assertIn("--wide", last)
                for title in ("NODE", "SLOTS", "SLOT SIZE"):  # of one memory node, and of an optimizer without state
                    self.assertNotIn(title, titles)
                for title in ("NAME", "SHAPE", "SIZE", "UPDATES", "STATE", *(("RULE", "LAYOUT", "SHARD") if columns > 60 else ())):
                    self.assertIn(title, titles)
        wide = run("inspect_shm", "vars", "--job", self.job).out.splitlines()
        self.assertRegex(wide[0], "NODE +SIZE +SLOTS +SLOT SIZE +PIECES")
        self.assertEqual(len(wide), 1 + len(names))

    def test_a_worker_is_one_line_of_what_people_need(self):
        for columns in (120, 80):
            with self.subTest(columns=columns):
                lines = show(columns, "inspect_shm", "workers", "--job", self.job).lines()
                self.assertEqual(len(lines), 4)
                self.assertEqual(lines[0].split(), "RANK STATE PID STEPS DROPPED LOSS STALENESS P99 WAITING FOR".split())
                self.assertIn("--wide", lines[-1])

    def test_what_is_wrong_is_red(self):
        worker = next(w for w in support.workers_of(self.job))
        support.stop(worker["pid"])
        try:
            for env, mark in (({"TERM": "xterm"}, "\x1b[31mWRONG:\x1b[39m"), ({"TERM": "xterm", "NO_COLOR": "1"}, "\nWRONG:")):
                with self.subTest(env), Terminal(80, "inspect_shm", "doctor", "--job", self.job, env=env) as screen:
                    self.assertEqual(screen.finish(), 3)
                    self.assertIn(mark, screen.shown)
        finally:
            os.kill(worker["pid"], signal.SIGCONT)

    def test_wide_shows_each_row_in_one_line(self):
        wide = show(60, "inspect_shm", "workers", "--job", self.job, "--wide").lines()
        self.assertEqual(len(wide), 3)
        self.assertRegex(wide[0], "^RANK .* MAX CLOCK SKEW .* WAITING FOR$")
        self.assertGreater(len(wide[0]), 100)

    def test_a_pipe_has_no_width_but_columns(self):
        for env, lines in (({}, 3), ({"COLUMNS": "80"}, 4), ({"COLUMNS": "nonsense"}, 3)):
            with self.subTest(env):
                out = run("inspect_shm", "workers", "--job", self.job, env=env)[1]
                self.assertEqual(len(out.splitlines()), lines, out)

    def test_show_fits_a_screen_and_wide_has_every_setting(self):
        shown = show(80, "inspect_shm", "show", "--job", self.job).lines()
        self.assertLessEqual(len(shown), 30)
        text = "\n".join(shown)
        self.assertNotRegex(text, "decision word|times the values")
        for changed in (r"tasks +2\b", r"place +{", r"workers +2\b", r"mode +async\b"):
            self.assertRegex(text, changed)
        self.assertNotIn("initial_accumulator", text)
        self.assertRegex(text, r"\d+ others have their default values; --wide")
        wide = "\n".join(show(80, "inspect_shm", "show", "--job", self.job, "--wide").lines())
        self.assertRegex(wide, r"initial_accumulator +0.1")
        self.assertNotIn("--wide", wide)
        self.assertEqual(wide.count("\n"), run("inspect_shm", "show", "--job", self.job)[1].count("\n") - 1)

    def test_show_tells_what_was_changed(self):
        self.assertEqual(run("inspect_shm", "set", "--job", self.job, "clip-norm=5")[0], 0)
        self.assertRegex(show(80, "inspect_shm", "show", "--job", self.job).shown, r"clip_norm +0, now 5\b")


class WorkerLines(ProcessTest):
    def test_they_are_broken_between_words(self):
        for program, last in ((["worker_shm", "--standalone", "--steps", "300"], "digest"), (["ps_shm", "--job", self.job], "left")):
            with self.subTest(program[0]), Terminal(40, *program) as screen:
                screen.read_until(lambda: f"{last}\r\n" in screen.shown or f"{last} " in screen.shown, "its lines")
                self.assertTrue(all(len(line) <= 40 for line in screen.lines()), screen.shown)
                self.assertRegex(" ".join(screen.shown.split()), "loss on training batch is|workers can join; ends when")


class Summary(ProcessTest):
    def test_it_fits(self):
        for columns in WIDTHS:
            with self.subTest(columns):
                lines = show(columns, "launch_shm", "--job", self.job, "--steps", "300").lines()
                begin = next(i for i, line in enumerate(lines) if re.search(r"\bjob test-", line))
                for line in lines[begin:]:
                    line = line.split("\r")[-1]
                    self.assertLessEqual(len(line), columns, line)
                self.assertRegex("\n".join(lines), r"examples/s\b")


class Help(ProcessTest):
    def test_no_line_is_wider_than_the_terminal(self):
        commands = [(program, option) for program in ("ps_shm", "worker_shm", "launch_shm")
                    for option in ("--help", "--help-all", "--version")]
        commands += [("inspect_shm", *words) for words in (["--help"], ["--version"], ["set", "--help"], ["dump", "--help"],
                                                           ["doctor", "--help"])]
        for command in commands:
            for columns in WIDTHS:
                with self.subTest(command, columns=columns):
                    screen = show(columns, *command)
                    self.assertGreaterEqual(len(screen.lines()), 4)
                    for line in screen.lines():
                        self.assertLessEqual(len(line), columns, line)


if __name__ == "__main__":
    support.main()

"""The matrix itself: outcomes of cases that fail in each way, its table, and what is said of it."""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from building import started
from matrix import AT_END, CRASHED, FAILED, HANGS, NOT_RUN, Cases, Table, fill, summarise

CHILD, QUOTED, ENDS, LAST = ("matrix: a child is killed", 'matrix: a name with "<&>"', "matrix: the process ends",
                             "matrix: the last one")
Mutant = collections.namedtuple("Mutant", "name")


def cases_with(fault, usual=None, patience=(10, 20)):
    program = os.environ["PS_SHM_TEST_MATRIX_CASES"]
    return Cases(lambda more: started([program, *more], {"PS_SHM_TEST_FAULT": fault}, ".", subprocess.DEVNULL), usual,
                 patience)


class Outcomes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cases = cases_with("none")
        cls.failures = cases.measure()
        cls.usual = cases.usual

    def test_unbroken_code_has_all_cases_and_no_failure(self):
        self.assertEqual(self.failures, {})
        self.assertEqual(list(self.usual), [CHILD, QUOTED, ENDS, LAST])
        self.assertEqual(cases_with("none", self.usual).run(), {})

    def test_each_way_to_fail_is_that_of_its_case_and_the_others_run(self):
        for fault, expected in (("failures", {QUOTED: FAILED, LAST: FAILED}), ("killed", {ENDS: CRASHED}),
                                ("signal", {ENDS: FAILED}), ("exit", {ENDS: CRASHED}), ("no end", {AT_END: CRASHED}),
                                ("no start", dict.fromkeys((CHILD, QUOTED, ENDS, LAST), CRASHED))):
            with self.subTest(fault):
                self.assertEqual(cases_with(fault, self.usual).run(), expected)

    def test_a_hang_is_that_of_its_case(self):
        self.assertEqual(cases_with("hang", self.usual, (10, 3)).run(), {ENDS: HANGS})

    def test_after_some_hangs_the_others_are_not_run(self):
        self.assertEqual(cases_with("all hang", self.usual, (0, 0.5)).run(),
                         {CHILD: HANGS, QUOTED: HANGS, ENDS: HANGS, LAST: NOT_RUN})

    def test_a_crash_without_a_mutant_is_a_failure(self):
        self.assertEqual(cases_with("exit").measure(), {ENDS: f"{CRASHED}, with 0"})


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path, self.tried = pathlib.Path(folder.name, "some/table.csv"), []

    def fill(self, names, selected, digest, interrupted_at=None):
        def try_one(mutant):
            if mutant.name == interrupted_at:
                raise KeyboardInterrupt
            self.tried.append(mutant.name)
            return {("test", f"of {mutant.name}, quoted \""): FAILED}, None

        self.tried = []
        table = Table(self.path)
        fill(table, [Mutant(name) for name in names], selected, lambda mutant: digest + mutant.name, try_one, lambda _: None)
        return sorted(row["mutant"] for row in Table(self.path).rows)

    def test_it_goes_on_after_an_interruption(self):
        with self.assertRaises(KeyboardInterrupt):
            self.fill("abc", "abc", "1", interrupted_at="b")
        self.assertEqual([row["mutant"] for row in Table(self.path).rows], ["a"])
        self.assertEqual(self.fill("abc", "abc", "1"), ["a", "b", "c"])
        self.assertEqual(self.tried, ["b", "c"])

    def test_only_what_is_selected_is_tried_and_the_rest_stays(self):
        self.fill("abc", "a", "1")
        self.assertEqual(self.fill("abc", "c", "1"), ["a", "c"])
        self.assertEqual(self.tried, ["c"])

    def test_what_has_changed_is_tried_again(self):
        self.fill("ab", "ab", "1")
        self.assertEqual(self.fill("ab", "b", "2"), ["b"])
        self.assertEqual(self.tried, ["b"])

    def test_a_row_that_was_half_written_is_tried_again(self):
        self.fill("ab", "ab", "1")
        self.path.write_bytes(self.path.read_bytes()[:-20])
        self.assertEqual(self.fill("ab", "ab", "1"), ["a", "b"])
        self.assertEqual(self.tried, ["b"])


class Summary(unittest.TestCase):
    def test_cases_that_are_there_for_nothing(self):
        def row(mutant, case, outcome=FAILED):
            return {"mutant": mutant, "sources": "", "test": "t" if case else "", "case": case, "outcome": outcome}

        rows = [row("one", "broad"), row("one", "narrow"), row("two", "broad"), row("three", "hung", HANGS),
                row("three", "unknown", NOT_RUN), row("four", "", "no case notices"), row("five", "", "does not build")]
        cases = [("t", case) for case in ("broad", "narrow", "hung", "unknown", "idle")]
        self.assertEqual(list(summarise(rows, cases)), [
            "5 mutants: 3 noticed, 1 by no case, 1 do not build",
            "noticed by no case:", "  four",
            "do not build:", "  five",
            "5 cases: 1 notice none, 3 notice none alone",
            "cases that notice none:", "  t: idle",
            "cases that notice none alone, with the number that they notice:",
            "    1  t: narrow", "    1  t: hung", "    1  t: unknown"])


if __name__ == "__main__":
    unittest.main()

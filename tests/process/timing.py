"""Test cases that measure time. They need a machine that is otherwise idle, so they form a suite of their own.

`meson test --suite timing` runs them, with PS_SHM_TEST_TIMING=1; without that variable they are left out, and only the
other cases run. They compare times with each other, never with a fixed number of seconds.
"""
import os
import unittest

TIMING = bool(os.environ.get("PS_SHM_TEST_TIMING"))


def measures_time(case):
    """Marks a test method, or a class of test methods."""
    case.measures_time = True
    return case


class Loader(unittest.TestLoader):
    """Loads the cases that measure time, or those that do not."""

    def getTestCaseNames(self, test_class):
        of_class = getattr(test_class, "measures_time", False)
        return [name for name in super().getTestCaseNames(test_class)
                if (of_class or getattr(getattr(test_class, name), "measures_time", False)) == TIMING]


def main():
    unittest.main(verbosity=2, testLoader=Loader())

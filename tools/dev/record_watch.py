#!/usr/bin/env python3
"""Draws docs/images/watch-*.svg: the pages of inspect_shm watch, as they stand on a terminal beside real jobs.

  build/venv/bin/python tools/dev/record_watch.py        after tools/test has built the programs and made build/venv
"""
import html
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("PS_SHM_TOOLS", str(ROOT / "build" / "test" / "tools"))
os.environ.setdefault("PS_SHM_SOURCE", str(ROOT))
sys.path.insert(0, str(ROOT / "tests" / "process"))
import support
from full_screen import FullScreen

COLUMNS, ROWS = 120, 26
WIDTH, HEIGHT, MARGIN = 7.8, 17, 12  # of a character; around the screen
INK, PAPER = "#d8dee9", "#1e222a"
COLOURS = {"default": INK, "red": "#ff6b6b", "green": "#8fce7c", "brown": "#f0c75e", "cyan": "#6fc6d8"}
DENSE = ("--workers", "3", "--chunk-bytes", "1024", "--delay", "all:1ms")
SPARSE = ("--workers", "2", "--model", "mf", "--delay", "all:1ms")


def svg(screen):
    """The screen as an image: for each run of characters that look alike, its place, its text and what lies behind."""
    shapes = []
    for row in range(screen.lines):
        line, y = screen.buffer[row], MARGIN + row * HEIGHT
        looks = [(line[x].fg, line[x].bold, line[x].reverse, line[x].underscore) for x in range(screen.columns)]
        begin = 0
        for x in range(1, screen.columns + 1):
            if x < screen.columns and looks[x] == looks[begin]:
                continue
            text, (colour, bold, reverse, underscore) = "".join(line[i].data for i in range(begin, x)), looks[begin]
            left, ink = MARGIN + begin * WIDTH, COLOURS.get(colour, INK)
            if reverse:
                shapes.append(f'<rect x="{left:.1f}" y="{y}" width="{(x - begin) * WIDTH:.1f}" height="{HEIGHT}" fill="{ink}"/>')
                ink = PAPER
            if text.strip():
                blanks, text = len(text) - len(text.lstrip()), text.strip()
                left += blanks * WIDTH
                style = (' font-weight="bold"' if bold else "") + (' text-decoration="underline"' if underscore else "")
                shapes.append(f'<text x="{left:.1f}" y="{y + 13}" textLength="{len(text) * WIDTH:.1f}" fill="{ink}"{style}>'
                              f"{html.escape(text).replace(' ', chr(160))}</text>")
            begin = x
    width, height = screen.columns * WIDTH + 2 * MARGIN, screen.lines * HEIGHT + 2 * MARGIN
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" font-size="13" '
            f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">\n'
            f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>\n' + "\n".join(shapes) + "\n</svg>\n")


def record(arguments, pages, upset=lambda job: None):
    job = "watch-demo"
    launcher = support.start("launch_shm", "--job", job, "--steps", "100000000", *arguments)
    try:
        support.wait_until(lambda: sum(w["steps"] > 50 for w in support.workers_of(job) or []) > 1, "they train")
        with FullScreen(COLUMNS, ROWS, "inspect_shm", "watch", "--job", job) as terminal:
            for page, keys, seconds in pages:
                terminal.press(*keys)
                if page == "workers":
                    upset(job)
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    terminal.read()
                (ROOT / "docs" / "images" / f"watch-{page}.svg").write_text(svg(terminal.screen))
                print(terminal.text(), "\n")
            terminal.press("q")
            terminal.finish()
    finally:
        for worker in support.workers_of(job) or []:
            if worker["state"] == "alive":
                os.kill(worker["pid"], signal.SIGCONT)
        launcher.send_signal(signal.SIGINT)
        support.finish(launcher)


def stop_one(job):
    os.kill(support.workers_of(job)[2]["pid"], signal.SIGSTOP)


record(DENSE, (("overview", "1", 20), ("variables", "3", 4), ("chunks", "4", 3)))
record(SPARSE, (("rows", ("5", ">"), 8),))
record((*DENSE, "--mode", "sync"), (("workers", "2", 6), ("events", "6", 1)), stop_one)

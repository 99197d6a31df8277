"""The code blocks of docs/python.md form one program, and it runs."""
import os
import pathlib
import re

import ps_shm

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_blocks_of_the_page_run_one_after_the_other(job, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", page, re.M | re.S))
    assert len(blocks) > 9
    names = {}
    for block in blocks:
        text = re.sub(r'"(job|policy|weights)"', lambda name: f'"{job}{name[1][0]}"', block[1])
        line = page[: block.start(1)].count("\n")
        exec(compile("\n" * line + text, str(PAGE), "exec"), names)
    for name in ("publisher", "subscriber", "learner", "actor"):
        names[name].close()
    assert re.match(r"100 Staleness\(.*\) 0\.1", capsys.readouterr().out)

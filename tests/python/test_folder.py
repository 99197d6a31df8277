"""Generations as files: loaders of safetensors read whole ones, and nobody's file changes."""
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

import ps_shm
from conftest import PATIENCE, read_line

safetensors = pytest.importorskip("safetensors")

READER = """
import mmap, sys
with open(sys.argv[1] + "/model.safetensors", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
before = bytes(mapped)
print("mapped", flush=True)
sys.stdin.readline()
sys.exit(bytes(mapped) != before)
"""


def load(folder):
    with safetensors.safe_open(str(pathlib.Path(folder, "model.safetensors")), framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def test_any_loader_of_safetensors_reads_what_was_published_last(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "model.safetensors").write_text("the first weights")
    tensors = {"w": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), "n": np.array([7]), "odd": np.arange(5, dtype=np.uint8),
               "scalar": np.array(2.5, np.float32), "none": torch.zeros(0, 3)}
    folder = str(tmp_path / "weights")
    with ps_shm.FolderPublisher(folder, tensors, static_files=str(tmp_path / "base")) as publisher:
        assert (publisher.generation, publisher.path) == (0, "")
        assert publisher.publish(tensors, step=5) == 1
        assert publisher.publish({"n": np.array([8])}, 6) == publisher.generation == 2
        assert publisher.path == folder + "/g00000002"
    found, metadata = load(folder + "/latest")
    assert metadata == {"format": "pt", "generation": "2", "step": "6"}
    assert found["w"].dtype == torch.bfloat16 and found["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["n"].tolist() == [8] and found["odd"].tolist() == [0, 1, 2, 3, 4] and found["scalar"].item() == 2.5
    assert found["none"].shape == (0, 3) and found["none"].dtype == torch.float32
    assert load(folder + "/g00000001")[0]["n"].tolist() == [7]
    assert sorted(os.listdir(folder + "/latest")) == ["config.json", "model.safetensors"]
    with ps_shm.FolderPublisher(folder, {"w": ("float32", (3,))}) as publisher:  # with other tensors, and numbered on
        assert publisher.publish({"w": np.ones(3, np.float32)}) == 3
    assert load(folder + "/latest")[0]["w"].tolist() == [1, 1, 1]


def test_a_foreign_process_keeps_what_it_has_mapped(tmp_path):
    with ps_shm.FolderPublisher(str(tmp_path), {"w": ("float32", (1000,))}) as publisher:
        publisher.publish({"w": np.zeros(1000, np.float32)})
        reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path / "latest")], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            assert read_line(reader.stdout) == "mapped\n"
            for number in range(1, 11):
                publisher.publish({"w": np.full(1000, number, np.float32)})
                assert load(tmp_path / "latest")[0]["w"].tolist() == [number] * 1000
            reader.communicate("\n", timeout=PATIENCE)
            assert reader.returncode == 0
        finally:
            reader.kill()


def test_a_generation_is_written_tensor_by_tensor_and_there_when_it_is_committed(tmp_path):
    with ps_shm.FolderPublisher(str(tmp_path), {"w": ("float32", (2, 3)), "n": ("int64", (1,))}) as publisher:
        with pytest.raises(ps_shm.Error, match="the first generation must contain all 2 tensors"):
            publisher.publish({"n": np.array([1])})
        with publisher.begin(step=4) as generation:
            generation.write("n", np.array([1]))
            generation.write("w", np.arange(4, dtype=np.float32))  # in two parts
            generation.write("w", np.array([4, 5], np.float32), begin=4)
            with pytest.raises(ps_shm.Error, match="is being written"):
                publisher.begin()
            assert generation.number is None and not (tmp_path / "latest").exists()
        assert generation.number == 1
        with pytest.raises(ZeroDivisionError):
            with publisher.begin() as generation:
                generation.write("n", np.array([2]))
                1 / 0
        with pytest.raises(ps_shm.Error, match="committed or given up"):
            generation.commit()
        dropped = publisher.begin()
        del dropped
        assert publisher.publish({"n": np.array([3])}) == 2
        assert load(tmp_path / "latest")[0]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
        for wrong, error in (({"w": np.zeros(6)}, TypeError), ({"w": np.zeros(5, np.float32)[:0]}, ValueError),
                             ({"w": np.zeros((3, 2), np.float32)}, ValueError), ({"x": np.zeros(1)}, KeyError)):
            with pytest.raises(error):
                publisher.publish(wrong)
        assert publisher.generation == 2
    with pytest.raises(ps_shm.Error, match="has left"):
        publisher.publish({"n": np.array([3])})


def test_float32_weights_are_published_as_bfloat16(tmp_path):
    w = torch.tensor([1.0, 1.00390625, -3.14159, float("inf"), float("nan")])
    with ps_shm.FolderPublisher(str(tmp_path), {"w": w, "n": np.zeros(1, np.int64)}, dtype="bfloat16") as publisher:
        publisher.publish({"w": w, "n": np.array([7])})
        found, _ = load(publisher.path)
        assert torch.equal(found["w"].view(torch.int16)[:4], w.to(torch.bfloat16).view(torch.int16)[:4])
        assert found["w"].dtype == torch.bfloat16 and found["w"][4].isnan() and found["n"].tolist() == [7]
        with publisher.begin() as generation:
            generation.write("w", torch.tensor([2.0, 3.0]), begin=1)
            generation.write("w", torch.ones(1, dtype=torch.bfloat16))
            with pytest.raises(TypeError):
                generation.write("n", np.zeros(1, np.float32))
            generation.write("w", torch.zeros(2), begin=3)
        assert load(publisher.path)[0]["w"].tolist() == [1, 2, 3, 0, 0]
    with pytest.raises(ValueError, match="'bfloat16' only"):
        ps_shm.FolderPublisher(str(tmp_path), {"w": w}, dtype="float16")


def test_there_is_one_publisher_for_a_folder_and_a_forked_child_is_none(tmp_path):
    with ps_shm.FolderPublisher(str(tmp_path), {"w": ("float32", (3,))}) as publisher:
        with pytest.raises(ps_shm.Error, match="another process writes generations"):
            ps_shm.FolderPublisher(str(tmp_path), {"w": ("float32", (3,))})
        child = os.fork()
        if child == 0:
            try:
                publisher.publish({"w": np.zeros(3, np.float32)})
            except ps_shm.Error as error:
                os._exit(0 if error.code == ps_shm.ErrorCode.INVALID_STATE else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert publisher.publish({"w": np.zeros(3, np.float32)}) == 1


def test_the_next_publisher_writes_the_files_of_the_one_before_again():
    tensors = {"w": np.zeros(3000, np.float32)}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        files = []
        for life in range(2):
            with ps_shm.FolderPublisher(folder, tensors) as publisher:
                for _ in range(4):
                    publisher.publish(tensors)
                    files.append(pathlib.Path(folder, "latest", "model.safetensors").stat().st_ino)
        if len(set(files[:4])) == 4:
            pytest.skip("files of this file system are not written again")
        assert len(set(files)) == 2


def test_a_folder_may_be_a_path_and_names_are_text(tmp_path):
    folder, base = tmp_path / "weights", tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    tensors = {"w": np.ones(3, np.float32)}
    with ps_shm.FolderPublisher(folder, tensors, static_files=base) as publisher:
        publisher.publish(tensors)
        assert (folder / "latest" / "config.json").read_text() == "{}"
        with pytest.raises(TypeError, match=r"names are text, not int \(0\)"):
            publisher.publish({0: tensors["w"]})
    with pytest.raises(TypeError, match=r"names are text, not bytes \(b'w'\)"):
        ps_shm.FolderPublisher(tmp_path / "other", {b"w": tensors["w"]})

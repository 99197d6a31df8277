"""FolderPublisher as a context manager."""

from . import _core
from ._closing import Closing, closed_at_exit
from ._core import NewFolderGeneration


@closed_at_exit
class FolderPublisher(_core.FolderPublisher, Closing):
    """Publishes a set of named tensors to a folder, each generation as a safetensors file, for programs that load files.

    Such as inference engines: they need nothing of this package. FOLDER/latest leads to the newest generation, which is
    complete. A file does not change while a process has it open or mapped.

        publisher = ps_shm.FolderPublisher("/dev/shm/weights", {"w": w, "b": b}, static_files="/models/base")
        publisher.publish({"w": w, "b": b}, step=1)
        publisher.path                                               # "/dev/shm/weights/g00000001"
        with publisher.begin(step=2) as generation:                  # tensor by tensor
            generation.write("w", w)
        publisher.close()

    Args:
        folder: the folder's path. In /dev/shm the files are in memory.
        tensors: an array for each tensor, of which only shape and dtype are used, or a pair of these, such as
            ("bfloat16", (512, 512)).
        files: how many generations the folder has, 2 to 64: the newest ones.
        static_files: a folder to whose entries, such as config.json, each generation's folder has symbolic links, except
            to weights. Empty: none.
        dtype: "bfloat16": tensors whose array in `tensors` is of float32 are published as bfloat16, and float32 arrays are
            rounded to nearest while they are copied. Empty: as they are.

    Raises:
        Error: another process publishes to the folder, or it cannot be written.
    """


__all__ = ["FolderPublisher", "NewFolderGeneration"]

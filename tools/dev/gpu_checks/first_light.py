"""What `--first-light` runs on a machine that has just got a GPU: four calls, each shorter than nine minutes."""
import programs

# Until which second of the call each part may run. What a part does not need is the next one's.
CALLS = {1: {1: 240, 5: 390, 7: 500}, 2: {3: 500}, 3: {8: 500}, 4: {6: 150, 2: 350, 9: 500}}
QUICK_PARTS = {2, 5, 7}
SOAK_MINUTES = 2
BOX = ("nvidia-smi", "nvidia-smi -q", "uname -a", "cat /sys/kernel/mm/transparent_hugepage/shmem_enabled", "getconf PAGESIZE",
       "ldd --version", "df -h /dev/shm", "ldconfig -p")


def describe_box(path):
    """What the machine says of itself, for readers of the figures."""
    with path.open("w") as file:
        for command in BOX:
            try:
                done = programs.run(command.split(), 20)
                said = done.out + done.err
            except OSError as error:
                said = f"{error}\n"
            file.write(f"$ {command}\n{said}\n")

"""Sets up every test process: mounts a private /dev/shm, resets the signal handling inherited from the parent, lets a
test that meson ends for its time say where it hangs, and injects random delays on request.

Importing this module mounts the file system, so it must be imported before the process starts a thread.
"""
import ctypes
import faulthandler
import os
import random
import signal
import sys
import time

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
INSIDE = "PS_SHM_TEST_OWN_DEV_SHM"


def mount_own_dev_shm():
    """Gives this process and its children a private /dev/shm, so that tests which list or remove all jobs of the
    machine can run side by side. Returns whether that was possible; if not, the unique names of jobs keep the tests
    apart.

    A user other than root needs a user namespace for it. The namespace maps only the user's own number, so that files
    which the user may not read stay unreadable. The capabilities within that namespace end with the next exec.
    """
    if INSIDE in os.environ:  # mounted by the process that started this one; both share it
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    pid = os.fork()  # a namespace without the mount would be worse than none, so a child process tries it first
    if pid == 0:
        os._exit(0 if _enter(libc, user, group) else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 or not _enter(libc, user, group):
        return False
    os.environ[INSIDE] = "1"
    return True


def _enter(libc, user, group):
    if libc.unshare(CLONE_NEWNS | (0 if user == 0 else CLONE_NEWUSER)) != 0:
        return False
    try:
        if user != 0:
            for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    except OSError:
        return False
    return (libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
            and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777") == 0)


def reset_signals():
    """Restores the default effect of signals that the parent ignores (nohup) or blocks, here and in programs that a
    test starts."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def random_delays():
    """Returns a function that sleeps 0.3 to 0.7 s in 4 of 10 calls if PS_SHM_TEST_DELAYS=SEED is set, and does nothing
    otherwise.

    The delays affect a test as a busy machine would. The sequence depends on the seed and on the command line of the
    test.
    """
    seed = os.environ.get("PS_SHM_TEST_DELAYS")
    if not seed:
        return lambda: None
    generator = random.Random(f"{seed} {sys.argv}")

    def delay():
        if generator.random() < 0.4:
            time.sleep(generator.uniform(0.3, 0.7))
    return delay


reset_signals()
faulthandler.register(signal.SIGTERM, file=sys.__stderr__, chain=True)  # meson's first signal: shows all threads
HAS_OWN_DEV_SHM = mount_own_dev_shm()
delay = random_delays()

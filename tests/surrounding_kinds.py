"""The environments of tests/surroundings: each sets itself up for this process and its children, or raises with the
reason why that is not possible here."""
import contextlib
import ctypes
import os
import pathlib
import platform
import shutil
import struct
import subprocess

USER = 65534  # a user without privileges and without sudo
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
# System calls that Docker's default profile blocks; ptrace was among them up to Linux 4.8.
REFUSED = {
    "x86_64": {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "ptrace": 101, "add_key": 248, "request_key": 249,
               "keyctl": 250, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279},
    "aarch64": {"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "ptrace": 117, "add_key": 217, "request_key": 218,
                "keyctl": 219, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239}}
PROTECTED = {"protected_regular": 2, "protected_fifos": 2, "protected_symlinks": 1, "protected_hardlinks": 1}
MANY_CORES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t* set) {
  memset(set, 0, size);
  for (int i = 0; i < 64 && i < (int)(8 * size); ++i) CPU_SET_S(i, size, set);
  return 0;
}
int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t* set) { return 0; }
long sysconf(int name) {
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return 64;
  return ((long (*)(int))dlsym(RTLD_NEXT, "sysconf"))(name);
}
"""


def check(result, what):
    if result != 0:
        raise OSError(f"{what}: {os.strerror(ctypes.get_errno())}")


def need_root():
    if os.geteuid() != 0:
        raise OSError("only root can make it")


def own_mounts():
    check(LIBC.unshare(CLONE_NEWNS), "no mount namespace")
    check(LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "no mounts of its own")


def own_users(only_one):
    """A user namespace in which this process is root: with root alone, or with all users of the machine."""
    maps = {}
    for kind in "ug":
        rows = [row.split() for row in pathlib.Path(f"/proc/self/{kind}id_map").read_text().splitlines()]
        current = os.geteuid() if kind == "u" else os.getegid()
        maps[kind] = f"0 {current} 1\n" if only_one else "".join(f"{row[0]} {row[0]} {row[2]}\n" for row in rows)
    done, tell = os.pipe()
    process = os.getpid()
    helper = os.fork()  # a child stays outside, where it may map users into the namespace
    if helper == 0:
        os.read(done, 1)
        with contextlib.suppress(OSError):
            if only_one:
                pathlib.Path(f"/proc/{process}/setgroups").write_text("deny")
            for kind, text in maps.items():
                pathlib.Path(f"/proc/{process}/{kind}id_map").write_text(text)
            os._exit(0)
        os._exit(1)
    made = LIBC.unshare(CLONE_NEWUSER)
    os.write(tell, b".")
    helped = os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == 0
    check(made, "no user namespace")
    if not helped:
        raise OSError("the user namespace gets no users")


def become_user(folder):
    need_root()
    home = folder / "home"
    home.mkdir(exist_ok=True)
    os.chown(home, USER, USER)
    os.environ.update(HOME=str(home), GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
    os.setgroups([]), os.setresgid(USER, USER, USER), os.setresuid(USER, USER, USER)
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be refused")  # not even with sudo
    if not os.access(__file__, os.R_OK):
        raise OSError(f"other users cannot read {__file__}")


def refuse(calls):
    """A seccomp filter that makes these calls fail with EPERM, in this process and its children."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    steps = [(load, 0, 0, 0)]
    steps += [(equal, len(calls) - i, 0, number) for i, number in enumerate(calls)]
    steps += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | 1)]  # allowed, EPERM
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    if os.geteuid() != 0:
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "privileges cannot be refused")
    check(LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0), "no seccomp filter")


def hidepid(_):
    need_root()
    own_mounts()
    check(LIBC.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2"), "/proc cannot be mounted")


def no_user_namespaces(folder):
    need_root()  # only a user other than root notices a missing one
    own_users(only_one=False)
    pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
    become_user(folder)


def no_unshare(folder):
    if platform.machine() not in REFUSED:
        raise OSError(f"the numbers of the system calls of {platform.machine()} are not known")
    programs = folder / "programs"
    if not programs.exists():
        programs.mkdir()
        for place in filter(os.path.isdir, os.environ["PATH"].split(":")):
            for name in os.listdir(place):
                if name != "unshare" and not (programs / name).is_symlink():
                    (programs / name).symlink_to(os.path.join(os.path.abspath(place), name))
    os.environ["PATH"] = str(programs)
    refuse(REFUSED[platform.machine()].values())


def many_cores(folder):
    library = folder / "many_cores.so"
    if not library.exists():
        made = subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=MANY_CORES,
                              text=True, capture_output=True)
        if made.returncode != 0:
            raise OSError(made.stderr.splitlines()[0])
    os.environ["LD_PRELOAD"] = str(library)


def small_shm(_):
    need_root()
    own_mounts()
    check(LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777,size=64m"), "/dev/shm cannot be mounted")
    os.environ["PS_SHM_TEST_OWN_DEV_SHM"] = "1"


def other_locale(folder):
    """A locale in which numbers have a comma and the lower case of I is not i. If there is none, one with ASCII
    only."""
    made = folder / "locales" / "tr_TR.UTF-8"
    if not made.exists() and shutil.which("localedef"):
        made.parent.mkdir(exist_ok=True)
        subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", made], capture_output=True)
    os.environ.update(LC_ALL=made.name, LOCPATH=str(made.parent)) if made.exists() else os.environ.update(LC_ALL="POSIX")


def odd_tmpdir(folder):
    long = folder / "a folder with spaces" / ("long" * 25) / ("er" * 50)
    long.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(long)


def protected(_):
    if not all(os.access(f"/proc/sys/fs/{name}", os.W_OK) for name in PROTECTED):
        raise OSError("the settings fs.protected_* cannot be changed here")


SURROUNDINGS = {
    "hidepid": (hidepid, "/proc shows other users' processes to root only"),
    "no-user-namespaces": (no_user_namespaces, "a user who is not root, and may make no user namespace"),
    "no-unshare": (no_unshare, "no program unshare, and the system calls refused that Docker refuses"),
    "one-core": (lambda _: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]), "one processor"),
    "many-cores": (many_cores, "the C library's calls report 64 processors"),
    "small-shm": (small_shm, "a /dev/shm of 64 MiB"),
    "user": (become_user, "a user who is not root and has no sudo"),
    "one-user": (lambda _: own_users(only_one=True), "a user namespace in which there is no second user"),
    "locale": (other_locale, "LC_ALL=tr_TR.UTF-8"),
    "tmpdir": (odd_tmpdir, "a long TMPDIR with spaces"),
    "umask": (lambda _: os.umask(0o077), "umask 077"),
    "protected-off": (protected, "all settings fs.protected_* 0"),
    "protected-on": (protected, "all settings fs.protected_* as strict as can be"),
}


@contextlib.contextmanager
def machine_settings(name):
    """Sets fs.protected_* if this environment changes one of them, and restores the old values afterwards."""
    before = {}
    try:
        for key, strict in PROTECTED.items() if name.startswith("protected-") else ():
            file = pathlib.Path("/proc/sys/fs", key)
            before[file] = file.read_text()
            file.write_text(str(strict if name == "protected-on" else 0))
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)

"""The files of deploy/ are executed: the test starts what they would start, each container in its own namespaces."""
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

import support
from support import PATIENCE, SHM, SOURCE, TOOLS, ProcessTest, wait_until

DEPLOY = SOURCE / "deploy"
NAMESPACES = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]


class Container:
    """A process with pid 1 in its own namespaces. Its /dev/shm is that folder, or a private tmpfs of that size."""

    def __init__(self, test, shm, command, environment=None, user=None, programs=TOOLS):
        mount = ["-t", "tmpfs", "-o", f"size={shm}", "tmpfs"] if isinstance(shm, str) else ["--bind", str(shm)]
        become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        self.process = subprocess.Popen(
            ["unshare", *(["--user", "--map-root-user"] if user is None else []), *NAMESPACES, "sh", "-ec",
             f'mount {shlex.join(mount)} /dev/shm; exec "$@"', "sh", *become, str(programs / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=support.environment(environment))
        test.addCleanup(self.kill)

    def kill(self):
        """Kills the first process of the namespace, and thereby all others, as a container engine does."""
        if self.process.poll() is None:
            for child in support.children(self.process.pid):
                os.kill(child, signal.SIGKILL)
        self.process.communicate()

    def stop(self):
        for child in support.children(self.process.pid):
            os.kill(child, signal.SIGTERM)

    def finish(self):
        return support.finish(self.process)


def read_yaml(name):
    read = subprocess.run([support.venv_python(), "-c", "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"],
                          input=(DEPLOY / name).read_text(), capture_output=True, text=True)
    if read.returncode != 0:
        raise AssertionError(f"{name}: {read.stderr}")
    return json.loads(read.stdout)


def why_not(own_user=True):
    """The reason why no container can be made here, or None. Containers that run as another user need real root."""
    if shutil.which("unshare") is None:
        return "skipped: there is no program unshare"
    made = subprocess.run(["unshare", *(["--user", "--map-root-user"] if own_user else []), *NAMESPACES, "mount", "-t", "tmpfs",
                           "tmpfs", "/dev/shm"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return None if made.returncode == 0 else f"skipped: no namespaces here: {made.stderr.strip()}"


def composed():
    """(name, command) of each container that compose.yaml starts by default, without the inspector's."""
    services = read_yaml("compose.yaml")["services"]
    for name, service in services.items():
        if name != "ps":
            assert service["ipc"] == "service:ps", name
    assert services["ps"]["ipc"] == "shareable"
    return [(name, service["command"]) for name, service in services.items() if "profiles" not in service
            for _ in range(service.get("deploy", {}).get("replicas", 1))]


def in_pod():
    """The same for kubernetes.yaml."""
    job = read_yaml("kubernetes.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")  # the policies that a Job allows
    assert [v["emptyDir"]["medium"] for v in pod["volumes"]] == ["Memory"]
    for one in pod["containers"]:
        assert one["volumeMounts"] == [{"name": pod["volumes"][0]["name"], "mountPath": "/dev/shm"}], one
    return [(one["name"], one["command"]) for one in pod["containers"]]


class Containers(ProcessTest):
    def setUp(self):
        if reason := why_not():
            self.skipTest(reason)
        super().setUp()
        self.shm = pathlib.Path(tempfile.mkdtemp(prefix="ps-test-", dir=SHM))
        self.addCleanup(lambda: self.shm.rmdir())  # empty by then

    def contain(self, *command):
        return Container(self, self.shm, command, {"PS_SHM_JOB": self.job})

    def inspect(self, *command):
        return self.contain("inspect_shm", *command).finish()

    def workers(self):
        code, out, _ = self.inspect("workers", "--json")
        return {w["rank"]: w for w in json.loads(out)["workers"]} if code == 0 else {}

    def train(self, containers):
        """All containers end by themselves."""
        running = [self.contain(*command) for _, command in containers]
        for one in running:
            code, out, err = one.finish()
            self.assertEqual(code, 0, f"{one.process.args}\nstdout: {out}\nstderr: {err}")

    def lose_one(self, containers):
        """One container is killed, and the others are stopped at the end."""
        commands = [[{"20000": "1000000000"}.get(word, word) for word in command] for _, command in containers]
        ps, *workers = [self.contain(*command) for command in commands]
        wait_until(lambda: sum(w["steps"] > 20 for w in self.workers().values()) == len(workers), "all train")
        workers[0].kill()
        states = wait_until(lambda: (s := [w["state"] for w in self.workers().values()]).count("dead") == 1 and s, "noticed")
        self.assertEqual(states.count("alive"), len(workers) - 1)

        # In every namespace pid 1 is another process: no process of the job may be mistaken for one in the viewer's
        # namespace.
        self.assertEqual({w["pid"] for w in self.workers().values()}, {1})
        code, out, err = self.inspect("doctor", "--job", self.job, "--json")
        self.assertEqual(code, 3, err)
        found = {finding["kind"] for finding in json.loads(out)["findings"]}
        self.assertIn("dead-worker", found)
        self.assertFalse(found & {"stopped-worker", "dead-ps", "removed-segments", "other-user"}, found)
        code, _, err = self.inspect("rm")
        self.assertEqual(code, 1)
        self.assertIn("is alive", err)
        before = {rank: w["steps"] for rank, w in self.workers().items() if w["state"] == "alive"}
        wait_until(lambda: all(self.workers()[rank]["steps"] > steps for rank, steps in before.items()), "the others go on")

        another = self.contain(*commands[1])
        wait_until(lambda: [w["state"] for w in self.workers().values()].count("alive") == len(workers), "one in its place")
        for one in [another, *workers[1:], ps]:
            one.stop()
            code, out, err = one.finish()
            self.assertEqual(code, 130, f"stdout: {out}\nstderr: {err}")
        self.assertIn(" died", out)

    def test_compose_trains(self):
        self.train(composed())

    def test_compose_survives_a_container_that_is_killed(self):
        self.lose_one(composed())

    def test_a_pod_trains(self):
        self.train(in_pod())

    def test_a_pod_survives_a_container_that_is_killed(self):
        self.lose_one(in_pod())

    def test_too_little_shared_memory_is_named(self):
        code, _, err = Container(self, "16m", ["launch_shm", "--workers", "1", "--data", "synthetic:25000x250", "--model",
                                               "softmax", "--steps", "1"]).finish()
        self.assertEqual(code, 1)
        self.assertIn("/dev/shm", err)
        self.assertIn("--shm-size", err)

    def test_another_user_is_told_whose_the_job_is(self):
        if reason := support.why_not_as(65531, "true") or why_not(own_user=False):
            self.skipTest(reason)
        self.shm.chmod(0o1777)
        with tempfile.TemporaryDirectory() as folder:  # readable for other users
            pathlib.Path(folder).chmod(0o755)
            programs = pathlib.Path(folder)
            for name in ("ps_shm", "worker_shm", "inspect_shm"):
                shutil.copy(TOOLS / name, programs)
            self.meet_another_user(programs)

    def meet_another_user(self, programs):
        ps = Container(self, self.shm, ["ps_shm", "--job", self.job], user=65531, programs=programs)
        wait_until(lambda: list(self.shm.glob("ps_shm.*")), "the job is there")
        code, _, err = Container(self, self.shm, ["worker_shm", "--job", self.job], user=65532, programs=programs).finish()
        self.assertEqual(code, 1)
        self.assertIn("65531", err)
        doctor = Container(self, self.shm, ["inspect_shm", "doctor", "--job", self.job], user=65532, programs=programs)
        code, out, err = doctor.finish()
        self.assertEqual(code, 3, err)
        self.assertRegex(out, f"WRONG: job {self.job}: it belongs to user 65531; the current user 65532")
        ps.stop()
        ps.finish()


class Slurm(ProcessTest):
    def test_a_batch_job_at_the_end_of_its_time_is_requeued_and_goes_on(self):
        srun = """#!/usr/bin/env bash
        # What Slurm does on one node: so many tasks, each with its number.
        for word; do case $word in --ntasks=*) tasks=${word#*=};; -*) ;; *) break;; esac; shift; done
        pids=()
        for ((i = 0; i < tasks; ++i)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids+=($!); done
        trap 'kill "${pids[@]}"' TERM
        status=0
        for pid in "${pids[@]}"; do wait $pid || status=$?; done
        exit $status"""
        with tempfile.TemporaryDirectory() as folder:
            scontrol = f'#!/bin/sh\necho "$@" >> {folder}/scontrol.log'
            for name, program in (("srun", srun), ("scontrol", scontrol)):
                path = pathlib.Path(folder) / name
                path.write_text(program)
                path.chmod(0o755)
            self.job = f"slurm-{os.getpid()}"
            env = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": folder,
                   "PATH": f"{folder}:{TOOLS}:{os.environ['PATH']}", "PS_SHM_LINGER": "1"}
            batch = DEPLOY / "slurm.sbatch"
            first = self.start("bash", batch, "--quiet", env={**env, "STEPS": "1000000000"})
            workers = support.wait_training(self.job, 2)
            self.assertEqual([w["rank"] for w in workers], [0, 1])
            for step in support.children(first.pid):  # Slurm sends the signal to the steps, not to the script
                for program in support.children(step):
                    os.kill(program, signal.SIGTERM)
            code, out, err = support.finish(first)
            self.assertEqual(code, 130, f"stdout: {out}\nstderr: {err}")
            self.assertEqual((pathlib.Path(folder) / "scontrol.log").read_text(), f"requeue {os.getpid()}\n")
            kept, = (pathlib.Path(folder) / self.job).glob("step-*/checkpoint.json")
            kept_at = int(kept.parent.name.removeprefix("step-"))

            steps = str(kept_at + 1000)
            code, out, err = support.run("bash", batch, "--quiet", env={**env, "STEPS": steps})
            self.assertEqual(code, 0, f"stdout: {out}\nstderr: {err}")
            self.assertIn(kept.parent.name, out + err)
            code, out, err = support.run("bash", batch, "--quiet", env={**env, "STEPS": steps})
            # Nothing is left to do: the ps reports that, and no worker waits for it.
            self.assertEqual(code, 0, f"stdout: {out}\nstderr: {err}")
            self.assertIn("done: checkpoint", err)
            self.assertEqual((pathlib.Path(folder) / "scontrol.log").read_text().count("requeue"), 1)
        self.assert_nothing_left()

    def test_a_worker_has_the_rank_that_its_launcher_gives_it(self):
        launchers = [{"RANK": "9", "LOCAL_RANK": "0"},  # torchrun on a further machine
                     {"LOCAL_RANK": "1", "SLURM_LOCALID": "9"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "PMIX_RANK": "9"},  # mpirun of Open MPI
                     {"MPI_LOCALRANKID": "3", "PMI_RANK": "9"},  # mpirun of MPICH and Intel MPI
                     {"PMIX_RANK": "9", "SLURM_LOCALID": "4"},  # srun --mpi=pmix
                     {"PMI_RANK": "9", "SLURM_LOCALID": "5"},  # srun --mpi=pmi2
                     {"SLURM_LOCALID": "6", "SLURM_PROCID": "9"},
                     {"LOCAL_RANK": "-1", "RANK": "7"},  # one machine, as far as known
                     {"PMI_RANK": "8", "SLURM_NNODES": "3", "SLURM_STEP_NUM_NODES": "1"}]
        self.start_ps("--workers", len(launchers))
        started = [self.start("worker_shm", "--job", self.job, "--model", "count", "--count-interval", "5ms", "--quiet", env=env)
                   for env in launchers]
        ranks = wait_until(lambda: (r := {w["pid"]: w["rank"] for w in support.workers_of(self.job) or []
                                          if w["state"] == "alive"}) and len(r) == len(launchers) and r, "all have joined")
        self.assertEqual([ranks[process.pid] for process in started], list(range(len(launchers))))
        worker = ["worker_shm", "--job", self.job, "--model", "count"]
        self.assert_fails(1, support.run(*worker, env={"LOCAL_RANK": "200"}),
                          "LOCAL_RANK=200 asks for rank 200, which is out of range: job", "--max-workers")
        self.assert_fails(1, support.run(*worker, env={"SLURM_LOCALID": "0"}),
                          f"SLURM_LOCALID=0 asks for rank 0 of job '{self.job}', which is taken by process {started[0].pid}; "
                          "choose another --rank, or unset SLURM_LOCALID")
        self.assert_fails(1, support.run(*worker, "--rank", "0", env={"SLURM_LOCALID": "1"}), ": rank 0 of job")


class Systemd(ProcessTest):
    UNIT = DEPLOY / "ps-shm@.service"

    def test_systemd_finds_no_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / self.UNIT.name  # the program is not installed
            unit.write_text(self.UNIT.read_text().replace("ExecStart=ps_shm", f"ExecStart={TOOLS / 'ps_shm'}"))
            code, out, err = support.run("systemd-analyze", "verify", "--man=no", "--user", unit,
                                         env={"XDG_RUNTIME_DIR": folder})
        self.assertEqual((code, out, [line for line in err.splitlines() if "ps-shm" in line]), (0, "", []))

    def test_a_ps_that_is_killed_is_followed_by_one_that_goes_on(self):
        command = shlex.split(re.search(r"^ExecStart=(.*)$", self.UNIT.read_text(), re.MULTILINE)[1])
        env = {"PS_SHM_JOB": self.job, "PS_SHM_LINGER": "1", "PATH": f"{TOOLS}:{os.environ['PATH']}"}
        first = self.start(*command, env=env)
        self.assertIn(self.job, support.read_line(first.stdout))
        worker = self.start("worker_shm", "--job", self.job, "--quiet")
        support.wait_training(self.job, 1)
        first.kill()
        second = self.start(*command, env=env)
        self.assertIn(self.job, support.read_line(second.stdout))
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(support.finish(worker).code, 130)
        code, _, err = support.finish(second)
        self.assertEqual(code, 0)
        self.assertIn("takes it over", err)


class Image(unittest.TestCase):
    @unittest.skipUnless("bookworm" in pathlib.Path("/etc/os-release").read_text(), "skipped: the image has Debian 12's packages")
    def test_the_image_has_the_libraries_that_the_programs_need(self):
        listed = re.search(r"--no-install-recommends (lib[^$]*)\$", (DEPLOY / "Dockerfile").read_text())[1]
        listed = set(listed.replace("\\", "").split())
        programs = [TOOLS / name for name in ("ps_shm", "worker_shm", "launch_shm", "inspect_shm")]
        read = support.run("readelf", "--dynamic", *programs)
        libraries = {library for library in re.findall(r"\(NEEDED\).*\[(.*)\]", read.out)
                     if not library.startswith(("libcu", "libasan", "libubsan"))}  # libraries of other build variants
        owners = support.run("dpkg-query", "--search", *(f"*/{library}" for library in libraries)).out
        needed = {line.split(":")[0] for line in owners.splitlines() if f"{os.uname().machine}-linux-gnu" in line}
        needed = {package for package in needed if not package.endswith("-dev")}
        self.assertEqual(listed, needed - {"libc6", "libgcc-s1", "libstdc++6"})

    def commands(self, cuda):
        """The commands that the RUN lines of the Dockerfile would execute; every program is a stub that records its
        call."""
        lines = re.sub(r"\\\n", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
        with tempfile.TemporaryDirectory() as folder:
            said = pathlib.Path(folder) / "said"
            for name in ("apt-get", "bash", "curl", "dpkg", "meson", "rm", "useradd"):
                path = pathlib.Path(folder) / name
                path.write_text(f'#!/bin/sh\necho {name} "$@" >> {said}')
                path.chmod(0o755)
            for line in lines:
                if line.startswith("RUN "):
                    subprocess.run(["/bin/sh", "-c", line.removeprefix("RUN ")], check=True, env={"PATH": folder, "CUDA": cuda})
            return said.read_text()

    def test_a_build_argument_makes_the_variant_with_cuda(self):
        plain, cuda = self.commands(""), self.commands("13-0")
        self.assertIn(" -Dcuda=disabled\n", plain)
        self.assertNotRegex(plain, "cuda-|libcublas|curl")
        self.assertIn(" -Dcuda=enabled\n", cuda)
        self.assertRegex(cuda, "(?s)curl .*cuda-keyring.*dpkg -i .*install -y cuda-nvcc-13-0 cuda-cudart-dev-13-0 "
                               "libcublas-dev-13-0\n.* zlib1g libcublas-13-0\n")


class Packages(unittest.TestCase):
    """Checks of the Debian packages that need no build. deploy/packaging/try builds, installs and removes the
    packages."""
    DEBIAN = DEPLOY / "packaging/debian"

    def test_each_installed_file_is_in_one_package(self):
        listed = support.run("meson", "introspect", "--installed", TOOLS.parent)
        self.assertEqual(listed.code, 0, listed.err)
        prefix = "/usr/local/"
        installed = {path.removeprefix(prefix) for path in json.loads(listed.out).values()
                     if "/dist-packages/" not in path}  # the Python package is distributed as a wheel
        self.assertIn("bin/ps_shm", installed)
        patterns = [line.split()[0].removeprefix("usr/") for path in self.DEBIAN.glob("*.install")
                    for line in path.read_text().splitlines() if not line.startswith("deploy/")]
        used = set()
        for path in sorted(installed):
            of = [p for p in patterns if fnmatch.fnmatch(path, p) or fnmatch.fnmatch(path, p + "/*")]
            self.assertEqual(len(of), 1, f"{path}: {of}")
            used.update(of)
        self.assertEqual(used, set(patterns))

    def test_what_contains_the_digits_names_their_licence(self):
        """Programs have the digits in them: packages, the image (all that meson installs but the library) and wheels."""
        self.assertIn("CC BY 4.0", (SOURCE / "NOTICE").read_text())
        self.assertIn("usr/share/doc/ps-shm\n", (self.DEBIAN / "ps-shm.install").read_text())
        self.assertIn("\nFiles: tools/data/*", (self.DEBIAN / "copyright").read_text())
        self.assertRegex((SOURCE / "pyproject.toml").read_text(), r"\nlicense-files = .*'NOTICE'")
        listed = support.run("meson", "introspect", "--installed", TOOLS.parent)
        self.assertIn("/usr/local/share/doc/ps-shm/NOTICE", json.loads(listed.out).values())

    def test_building_them_takes_what_running_does(self):
        control = (self.DEBIAN / "control").read_text()
        wanted = {name.split()[0] for name in re.search(r"^Build-Depends:(.*?)^\S", control, re.S | re.M)[1].split(",")}
        setup = re.search(r"^packages_to_run=\((.*?)^\)", (SOURCE / "tools/setup.sh").read_text(), re.S | re.M)[1]
        have = set(re.findall(r"^  '([^|]+)\|", setup, re.M))
        # come with build-essential and meson
        self.assertEqual(wanted - {"debhelper-compat"}, have - {"g++", "ninja-build"})

    def test_their_version_is_that_of_the_programs(self):
        version = re.search(r"^ps-shm \(([^-]*)-", (self.DEBIAN / "changelog").read_text())[1]
        self.assertIn(f"version: '{version}'", (SOURCE / "meson.build").read_text())


if __name__ == "__main__":
    support.main()

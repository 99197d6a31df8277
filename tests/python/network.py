"""A network of several machines, as network namespaces that a switch joins, each by a link of limited bandwidth."""
import contextlib
import os
import subprocess

import pytest
from conftest import wait_until


class Network:
    """Machine K has the interface eth0 and address(K). Skips the test where a process may not make such networks."""

    def __init__(self, machines, rate):
        """rate: of each link in each direction, in tc's words."""
        self.machines, self.rate = machines, rate
        self._holders = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            try:
                self._make()
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no networks of several machines here: {getattr(error, 'stderr', None) or error}")
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self._close()

    def _make(self):
        for _ in range(self.machines + 1):  # the last one is the switch
            self._holders.append(subprocess.Popen(["unshare", "-n", "sleep", "infinity"], stderr=subprocess.DEVNULL))
        for holder in self._holders:
            wait_until(lambda: holder.poll() is not None or self._has_own(holder), "a network namespace")
        switch = self.machines
        self.run(switch, "ip", "link", "add", "br0", "type", "bridge")
        self.run(switch, "ip", "link", "set", "br0", "up")
        for machine in range(self.machines):
            port = f"port{machine}"
            self.run(switch, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                     str(self._holders[machine].pid))  # fmt: skip
            self.run(switch, "ip", "link", "set", port, "master", "br0", "up")
            self.run(machine, "ip", "address", "add", f"{self.address(machine)}/24", "dev", "eth0")
            self.run(machine, "ip", "link", "set", "eth0", "up")
            self.run(machine, "ip", "link", "set", "lo", "up")
            for end, interface in ((switch, port), (machine, "eth0")):
                self.run(end, "tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", self.rate, "burst", "32kbit",
                         "latency", "400ms")  # fmt: skip

    def _close(self):
        for holder in self._holders:
            holder.kill()
            holder.wait()

    @staticmethod
    def _has_own(holder):
        return os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net")

    def address(self, machine):
        return f"10.77.0.{machine + 1}"

    def inside(self, machine):
        """What a command begins with that runs on that machine."""
        return ["nsenter", "-t", str(self._holders[machine].pid), "-n"]

    def run(self, machine, *command):
        subprocess.run([*self.inside(machine), *command], check=True, capture_output=True, text=True)

    def cut(self, machine):
        """Cuts the machine's cable."""
        self.run(self.machines, "ip", "link", "set", f"port{machine}", "down")

    def mend(self, machine):
        self.run(self.machines, "ip", "link", "set", f"port{machine}", "up")

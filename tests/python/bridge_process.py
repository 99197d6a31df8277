"""The process of a bridge, as tests start it. Apart from boxes.py, as such a process is not isolated once more."""
import faulthandler
import functools
import os
import signal
import sys


def run_bridge(arguments, errors, dies_at, is_unreachable):
    """The process of a bridge. dies_at: kills itself before or after this header or message, from 0, until its first round is over;
    or at a point such as "behind give", when it has come there so often: ("behind give", 2).
    is_unreachable: it reaches the store, but no other bridge.
    """
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    with open(errors, "a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    faulthandler.register(signal.SIGUSR1)  # shows where it is
    from ps_shm.bridge import _box, _group, _options, _rounds, _state, _tables

    if is_unreachable:

        def fail(*_, **__):
            raise RuntimeError("connection refused")

        _group.dist.init_process_group = fail
    if dies_at is not None:
        left = [dies_at]

        if isinstance(dies_at, tuple):
            left = [dies_at[1] - 1]

        def step(what):
            if isinstance(dies_at, tuple) and not what.startswith(dies_at[0]):
                return
            if left[0] == 0:
                print(f"killed {what}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

        def with_steps(of, name):
            method = getattr(of, name)

            @functools.wraps(method)
            def call(self, *arguments, **settings):
                step(f"before {name} {settings or ''}")
                found = method(self, *arguments, **settings)
                if of is not _group.Group:
                    step(f"behind {name} {settings or ''}")
                return found

            setattr(of, name, call)

        for of, name in ((_state.State, "set"), (_state.State, "step"), (_box.Box, "add"), (_group.Group, "gather"),
                         (_group.Group, "unite"), (_group.Group, "exchange"), (_tables.Tables, "step"),
                         (_tables.Tables, "accept"), (_tables.Tables, "rebase"), (_tables.GuestTable, "give"),
                         (_tables.GuestTable, "changed_since"), (_tables.GuestTable, "read")):
            with_steps(of, name)
        round_of_rounds = _rounds.Bridge.round

        def round_with_steps(self):
            found = round_of_rounds(self)
            if not isinstance(dies_at, tuple):
                left[0] = -1
            return found

        _rounds.Bridge.round = round_with_steps
    sys.exit(_rounds.run(_options.parse(arguments)))

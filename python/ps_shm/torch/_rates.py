"""Learning rates, weight decay and momentum as the groups of PyTorch's optimizers have them, which schedulers change."""

import math
from collections.abc import Container
from typing import Any, Literal, Optional

from .. import Bundle, Error, Variable
from ._membership import Membership
from ._model import Group
from ._settings import as_number, decay_of, fixed_settings, refuse_others

_Factors = tuple[float, float]  # what the job's rate, and its decay, are multiplied by


def take_defaults(settings: dict[str, Any], groups: list[Group], of_tables: list[int]) -> None:
    """Takes from the groups what the settings of a job that is created here do not say. `of_tables`: as for Rates."""
    rates = [group.lr for group in groups]
    if settings.get("lr") is None and None not in rates:
        settings["lr"] = rates[of_tables[0]] if of_tables and rates[of_tables[0]] else rates[0]
    decays = [group.weight_decay for group in groups if group.weight_decay]
    if settings.get("weight_decay") is None and decays:
        settings["weight_decay"] = max(decays)


def _scale(name: str, of_group: Optional[float], said: dict[str, str]) -> float:
    of_job = float(said[name])
    if of_group is None or (name == "lr" and of_group == of_job):
        return 1.0
    if of_group == 0:
        return 0.0
    if of_group < 0 or of_job == 0:
        of_torch = "lr" if name == "lr" else "weight_decay"
        raise ValueError(f"params: a group has {of_torch}={of_group}, and the job {of_torch}={of_job}; give the job one above 0")
    return of_group / of_job


def _in_force(variable: Variable) -> _Factors:
    return variable.lr_scale, variable.regularize


def _are_close(old: _Factors, new: _Factors) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(old, new))


class Rates:
    """The settings of the groups: a rate and a decay for each variable, which are multiples of the job's, and one momentum.

    What the groups ask for becomes the job's through the living worker of the lowest rank. Rates that change by the same
    factor are one change of the job's rate, if no prefix says that there are other models; otherwise that rate stays, and
    each variable's multiple of it changes. The multiple that the rows of a table have is fixed, so with tables the job's
    rate follows the groups that these are in.
    """

    def __init__(self, membership: Membership, groups: list[Group], prefix: str, of_tables: list[int]) -> None:
        """`of_tables`: the number of the group that each table is in."""
        said = membership.worker.settings
        self._of_tables = sorted(set(of_tables))
        self._membership, self._groups, self._prefix = membership, groups, prefix
        self._worker, self._rule, self._mode = membership.worker, said["optimizer"], said["mode"]
        self._fixed = fixed_settings(self._rule, said)
        self._decay, self._beta2 = said[decay_of(self._rule)], said["beta2"]
        self._declared: list[_Factors] = [
            (_scale("lr", group.lr, said), _scale(decay_of(self._rule), group.weight_decay, said)) for group in groups
        ]
        self._of_groups = self._declared
        self._live = self._read_live()
        self._has_led = False

    def of_table(self, group: int) -> float:
        """What the job's rate is multiplied by for the rows of the tables in a group. Those of a group without a rate are
        not pushed: the multiple is that for the rate that it gets."""
        return self._declared[group][0] or 1.0

    def declared(self, which: Literal["rate", "decay"], variables: Container[str]) -> dict[str, float]:
        """The factors with which these variables are declared, by name."""
        at = 0 if which == "rate" else 1
        names = ((self._prefix + name, of[at]) for group, of in zip(self._groups, self._declared) for name in group.parameters)
        return {name: factor for name, factor in names if name in variables}

    def read(self, bundle: Bundle) -> None:
        """Takes over what is in force in the job, where an earlier leader may have changed it."""
        self._live = self._read_live()
        self._of_groups = [
            next((_in_force(variable) for variable in self._variables(group, bundle)), declared)
            for group, declared in zip(self._groups, self._declared)
        ]

    def of_job(self) -> dict[str, Any]:
        """The settings that PyTorch users expect in the defaults, and in each of the param_groups."""
        shown: dict[str, Any] = {"lr": self._live["lr"], "optimizer": self._rule, "mode": self._mode}
        if "momentum" in self._live:
            shown["momentum"] = self._live["momentum"]
        if "beta1" in self._live:
            shown["betas"] = (self._live["beta1"], self._beta2)
        return shown

    def of_groups(self) -> list[dict[str, float]]:
        """The rate and the decay of each group."""
        return [{"lr": self._live["lr"] * rate, "weight_decay": self._decay * decay} for rate, decay in self._of_groups]

    def follow(self, param_groups: list[dict[str, Any]], bundle: Bundle) -> None:
        """Passes on what a scheduler has changed in the groups, if no other living worker has a lower rank."""
        live, factors = self._wanted(param_groups)
        if live == self._live and all(map(_are_close, self._of_groups, factors)) or not self._membership.leads:
            return
        takes_over = not self._has_led
        if takes_over:
            self._has_led = True
            self.read(bundle)
            live, factors = self._wanted(param_groups)
        changed = {key: value for key, value in live.items() if value != self._live[key]}
        if changed:
            self._worker.set(**changed)
            self._worker.refresh_optimizer()  # the step of this call is the first one with them, as with PyTorch
            self._live.update(changed)
        have_changed = [takes_over or not _are_close(old, new) for old, new in zip(self._of_groups, factors)]
        self._of_groups = factors
        self._give(bundle, have_changed)

    def moves_table(self, group: dict[str, Any]) -> bool:
        """Whether the rows of a table in a group are to be pushed. Not if it has no rate, and the job has one for others."""
        return as_number(group["lr"]) != 0 or self._live["lr"] == 0

    def give(self, bundle: Bundle) -> None:
        """Gives the factors of its group to each variable that the bundle has got since follow()."""
        if self._has_led:
            self._give(bundle, [True] * len(self._groups))

    def _give(self, bundle: Bundle, which: list[bool]) -> None:
        for group, factors, is_wanted in zip(self._groups, self._of_groups, which):
            for variable in self._variables(group, bundle) if is_wanted else ():
                if not _are_close(_in_force(variable), factors):
                    variable.set_factors(*factors)

    def _read_live(self) -> dict[str, float]:
        live = self._worker.live
        has_beta, has_momentum = self._rule in ("adam", "adamw"), self._rule in ("momentum", "nesterov")
        return {key: live[key] for key in ["lr"] + ["momentum"] * has_momentum + ["beta1"] * has_beta}

    def _variables(self, group: Group, bundle: Bundle) -> list[Variable]:
        declared = set(bundle.names)
        return [bundle[name] for name in (self._prefix + of_model for of_model in group.parameters) if name in declared]

    # What the groups ask for: runtime settings of the job, and the factors of each group.
    def _wanted(self, param_groups: list[dict[str, Any]]) -> tuple[dict[str, float], list[_Factors]]:
        for group in param_groups:
            refuse_others(group, self._fixed, "a group of parameters")
        live = {}
        for key in self._live.keys() - {"lr"}:
            values = [as_number(group["betas"][0] if key == "beta1" else group[key]) for group in param_groups]
            if not all(math.isclose(value, values[0], rel_tol=1e-6) for value in values):
                raise Error(f"the groups of parameters differ in `{key}`: it is the job's, for all groups")
            live[key] = values[0]
        live["lr"], rates = self._wanted_rates([as_number(group["lr"]) for group in param_groups])
        decays = self._wanted_decays([as_number(group["weight_decay"]) for group in param_groups])
        known = self._live
        live = {key: known[key] if math.isclose(value, known[key], rel_tol=1e-12) else value for key, value in live.items()}
        return live, list(zip(rates, decays))

    def _wanted_rates(self, rates: list[float]) -> tuple[float, list[float]]:
        factors = [rate for rate, _ in self._of_groups]
        of_job = [rate / factor for rate, factor in zip(rates, factors) if factor != 0] or [self._live["lr"]]
        have_changed_alike = all(math.isclose(rate, of_job[0], rel_tol=1e-6) for rate in of_job)
        is_of_job = bool(self._of_tables) or not self._prefix
        if have_changed_alike and is_of_job and all(rate == 0 for rate, factor in zip(rates, factors) if factor == 0):
            return of_job[0], factors
        bases = [rates[group] / self.of_table(group) for group in self._of_tables if rates[group] != 0]
        if not all(math.isclose(base, bases[0], rel_tol=1e-6) for base in bases):
            raise Error("the rates of groups with an Embedding have changed by different factors; put them into one group")
        base = bases[0] if bases else self._live["lr"] or max(rates)
        return base, [rate / base for rate in rates]

    def _wanted_decays(self, decays: list[float]) -> list[float]:
        if self._decay == 0 and any(decays):
            raise Error(f"a group of parameters has weight_decay={max(decays)}, and the job 0: create the job with one above 0")
        return [decay / self._decay if self._decay != 0 else factor for decay, (_, factor) in zip(decays, self._of_groups)]

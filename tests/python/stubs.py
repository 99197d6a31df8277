"""For the stubs of inference engines: modules that stand in for those of a package, or that are read from its wheel."""
import importlib.util
import pathlib
import sys
import types


def module(name, **contents):
    """Puts a module of these contents into sys.modules."""
    made = types.ModuleType(name)
    made.__dict__.update(contents, __path__=[])
    sys.modules[name] = made
    return made


def real(name, folder):
    """Puts the module of an unpacked wheel into sys.modules, without importing the packages that it is in."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(folder) / (name.replace(".", "/") + ".py"))
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made

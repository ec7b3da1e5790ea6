#!/usr/bin/env bash
# Prints the path of a Python that Uzu can run on, or says why none fits and what to install.
#
#   tools/find_python.sh [CANDIDATE...]     without candidates: $PYTHON, or else the usual places
#
# Fitting means: CPython 3.11 or 3.12 (numpy 1.26, which Triton's Python stub needs, has no wheels for
# later ones), its shared library (the stub loads it), and working venv and ensurepip modules.
set -uo pipefail

probe='
import ctypes, os, platform, sys, sysconfig
if platform.python_implementation() != "CPython" or sys.version_info[:2] not in ((3, 11), (3, 12)):
    sys.exit("is %s %s; 3.11 or 3.12 is needed" % (platform.python_implementation(), platform.python_version()))
name = "libpython%d.%d.so.1.0" % sys.version_info[:2]
libdir = sysconfig.get_config_var("LIBDIR") or ""
for library in (os.path.join(libdir, name), name):
    try:
        ctypes.CDLL(library)
        break
    except OSError:
        pass
else:
    sys.exit("has no shared library %s" % name)
try:
    import ensurepip, ssl, venv
except ImportError as error:
    sys.exit("has no module %s" % error.name)
print(sys.executable)
'

if [ $# -gt 0 ]; then
  candidates=("$@")
elif [ -n "${PYTHON:-}" ]; then
  candidates=("$PYTHON")
else
  shopt -s nullglob
  candidates=(
    python3.11 python3.12 python3 python
    /usr/local/bin/python3.1[12] /usr/bin/python3.1[12]
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[12]*/bin/python3
    "$HOME"/.local/share/uv/python/cpython-3.1[12]*/bin/python3
    /opt/*/bin/python3.1[12] /opt/python*/*/bin/python3.1[12] /opt/homebrew/bin/python3.1[12]
  )
  shopt -u nullglob
fi

reasons=()
for candidate in "${candidates[@]}"; do
  if ! path=$(command -v -- "$candidate"); then
    reasons+=("$candidate: not found")
    continue
  fi
  if answer=$("$path" -c "$probe" 2>&1 </dev/null); then
    printf '%s\n' "$answer"
    exit 0
  fi
  case $answer in
    Traceback*) reasons+=("$path: ${answer##*$'\n'}") ;;
    *) reasons+=("$path: ${answer%%$'\n'*}") ;;
  esac
done

{
  echo "No fitting Python found: Uzu needs CPython 3.11 or 3.12 with its shared library, venv and ensurepip."
  [ ${#reasons[@]} -eq 0 ] || printf '  %s\n' "${reasons[@]}"
  echo "Debian, Ubuntu:  apt-get install python3.11 python3.11-venv libpython3.11    (or the same with 3.12)"
  echo "pyenv:           PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.11"
  echo "Elsewhere:       make setup PYTHON=/path/to/python3.11"
} >&2
exit 1

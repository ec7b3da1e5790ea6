import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from uzu.guardian import STARTER_DIED
from uzu.processes import describe_exit, guarded, run_lines

# Starts a guarded command as uzu does, says its own pid, and stays.
STARTER = """
import subprocess, sys, time
from uzu.processes import guarded
subprocess.Popen(guarded([sys.executable, "-c", sys.argv[1], sys.argv[2]], 2.0), start_new_session=True)
time.sleep(120)
"""
# On SIGTERM it takes a moment to leave in order.
POLITE = """
import os, signal, sys, time
def down(*_):
    time.sleep(0.5)
    os.rename(sys.argv[1], sys.argv[1] + ".left")
    sys.exit(0)
signal.signal(signal.SIGTERM, down)
open(sys.argv[1], "w").close()
time.sleep(120)
"""
# A child that has a grandchild in a session of its own; both write down their pids.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(120)
"""
# Watches a child that outlives attempts to kill it for a second; says how many there were.
UNKILLABLE = """
import os, signal, subprocess, sys, time
from uzu import guardian
signal.pthread_sigmask(signal.SIG_BLOCK, guardian._WATCHED)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; time.sleep(60)"], restore_signals=False)
os.kill(os.getpid(), signal.SIGTERM)
attempts = []
def kill(pid):
    attempts.append(time.monotonic())
    if attempts[-1] - attempts[0] > 1.0:
        os.kill(pid, signal.SIGKILL)
code = guardian._watch(child.pid, 0.0, kill)
child.returncode = code
print(code, len(attempts))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def family(pids: Path, wait_until: Callable[..., None]) -> list[int]:
    wait_until(pids.exists, 10, "the family started")
    found = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, found))
    return found


def test_nothing_outlives_a_killed_starter(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], wait_until: Callable[..., None]
) -> None:
    starter = spawn([sys.executable, "-c", STARTER, FAMILY, str(tmp_path / "pids")])
    pids = family(tmp_path / "pids", wait_until)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    wait_until(lambda: not any(map(alive, pids)), 10, "the family ended")


def test_a_dying_starter_s_threads_are_no_second_request_to_stop(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], wait_until: Callable[..., None]
) -> None:
    up, left = tmp_path / "up", tmp_path / "up.left"
    process = spawn(guarded([sys.executable, "-c", POLITE, str(up)], 10.0))
    wait_until(up.exists, 10, "the child started")
    for _ in range(3):
        process.send_signal(STARTER_DIED)
        time.sleep(0.1)
    assert process.wait(timeout=5) == 0
    assert left.exists()


def test_nothing_outlives_a_killed_child(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], wait_until: Callable[..., None]
) -> None:
    process = spawn(guarded([sys.executable, "-c", FAMILY, str(tmp_path / "pids")], 2.0))
    child, grandchild = family(tmp_path / "pids", wait_until)
    os.kill(child, signal.SIGKILL)
    assert process.wait(timeout=10) == 128 + signal.SIGKILL
    assert not alive(grandchild)


def test_a_killed_guardian_takes_the_child_along(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]], wait_until: Callable[..., None]
) -> None:
    process = spawn(guarded([sys.executable, "-c", FAMILY, str(tmp_path / "pids")], 2.0))
    child, grandchild = family(tmp_path / "pids", wait_until)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not alive(child), 10, "the child ended")
    os.kill(grandchild, signal.SIGKILL)


@pytest.mark.parametrize(("signals", "grace_s", "within_s"), [(1, 0.5, 5.0), (2, 60.0, 5.0)])
def test_a_child_that_ignores_sigterm_is_killed(
    spawn: Callable[..., subprocess.Popen[str]], signals: int, grace_s: float, within_s: float
) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(99)"
    )
    process = spawn(guarded([sys.executable, "-c", stubborn], grace_s), stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    started = time.monotonic()
    for _ in range(signals):
        process.terminate()
        time.sleep(0.2)
    assert process.wait(timeout=within_s) == 128 + signal.SIGKILL
    assert time.monotonic() - started < within_s


def test_what_does_not_die_at_once_is_not_waited_for_in_a_spin(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    watcher = spawn([sys.executable, "-c", UNKILLABLE], stdout=subprocess.PIPE)
    assert watcher.stdout is not None
    code, attempts = map(int, watcher.stdout.read().split())
    assert code == 128 + signal.SIGKILL
    assert 2 <= attempts <= 5


def test_exit_codes_pass_through(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    assert spawn(guarded([sys.executable, "-c", "raise SystemExit(7)"], 1.0)).wait(timeout=10) == 7
    missing = spawn(guarded(["/no/such/program"], 1.0), stderr=subprocess.PIPE)
    assert missing.wait(timeout=10) == 127
    assert missing.stderr is not None
    assert missing.stderr.read() == "cannot run /no/such/program: No such file or directory\n"
    assert describe_exit(7) == "ended with exit code 7"
    assert describe_exit(137) == "was killed by SIGKILL"


def test_lines_of_a_short_command() -> None:
    environment = dict(os.environ)
    assert list(run_lines([sys.executable, "-c", "print('a'); print('ü')"], environment=environment)) == [
        "a",
        "ü",
    ]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        list(run_lines([sys.executable, "-c", "print('why'); raise SystemExit(3)"], environment=environment))
    assert (caught.value.returncode, caught.value.output) == (3, "why")

"""Runs the mutations: `make mutants`, or `python tests/mutations/run.py [WORD ...]` for those whose line has a word.
With `--log FILE` lines go to FILE, too, and what FILE tells of is passed over: so a run goes on where it was left.

Each mutant is made in a copy of the tree and asks the few tests named for it, in a process forked from one that has
loaded what is not ours; it ends at the first failure or after a time limit. First all tests are asked of the copy as
it is. Exit code 0 if every mutant is killed but for those listed as equivalent, and none of these; 1 if not.
"""

import argparse
import contextlib
import gc
import importlib.util
import io
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
from mutants import ROOT, Mutant, mutants

LIMIT = 30
"""Seconds of a processor that a mutant's tests may take; ten times as many by the clock."""
LOADED = "hypothesis mpmath numpy pytest scipy.stats tokenizers torch transformer_lens xarray zarr".split()
MODELS = "bloom gpt_neox llama mistral mpt qwen2".split()
OURS = ("mesa", "probe", "theory", "mesa_lens")
OPTIONS = ["-xq", "-pno:cacheprovider", "-pno:xdist", "--hypothesis-seed=0", "-pno:unraisableexception",
           "-Wignore::pytest.PytestAssertRewriteWarning"]  # fmt: skip
KILLED, SURVIVED, TIMED_OUT, BROKEN = "killed", "SURVIVED", "killed by time", "BROKEN"


class Unshrunk:
    """A plugin: property tests end at the first example that fails."""

    def pytest_configure(self) -> None:
        """After conftest.py has loaded the tests' profile."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", deadline=None, phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")


def copied(folder: Path) -> None:
    """Copies the tree as it is, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def load(folder: Path) -> None:
    """Goes to the copy and loads what is not ours, so that forks need not."""
    os.environ |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    for name in (*LOADED, *(f"transformers.models.{model}.modeling_{model}" for model in MODELS)):
        importlib.import_module(name)
    for name in OURS:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert str(spec.origin).startswith(str(folder)), f"{name} comes from {spec.origin}"
        assert name not in sys.modules
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*OPTIONS, "--collect-only", "tests/test_imports.py"])  # its plugins, and ours of all tests
    assert not sys.modules.keys() & set(OURS)
    gc.freeze()  # what is loaded need not be looked through by every fork


def ask(tests: tuple[str, ...], output: Path, limit: int = LIMIT) -> tuple[str, float]:
    """What comes of these tests in a fork, KILLED if one fails, and its seconds; their output goes to `output`."""
    ended, running = os.pipe()
    child = os.fork()
    if not child:
        try:
            _tests(tests, output, limit)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
    os.close(running)
    in_time = bool(select.select([ended], [], [], 10 * limit)[0])
    os.close(ended)
    if not in_time:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return outcome(code, in_time and code != -signal.SIGXCPU), used.ru_utime + used.ru_stime


def outcome(code: int, in_time: bool) -> str:
    """What pytest's exit code says: 1 a failure, 2 and 4 an import that fails, below 0 a crash; else nothing ran."""
    if not in_time:
        return TIMED_OUT
    return SURVIVED if code == 0 else KILLED if code in (1, 2, 4) or code < 0 else BROKEN


def _tests(tests: tuple[str, ...], output: Path, limit: int) -> None:
    """Runs pytest and ends the process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    with output.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        code = pytest.main([*OPTIONS, *tests], [Unshrunk()])
        sys.stdout.flush()
    os._exit(int(code))


def try_one(number: int, mutant: Mutant, folder: Path, output: Path) -> tuple[str, float]:
    """What came of it, and the seconds it took; the copy is as before after it.

    BROKEN where time is up and the same tests do not pass within it as the file is: then nothing was killed.

    Each mutant has a time of its own: of one of the same second and size as another, Python would run the other's
    bytecode.
    """
    path = folder / mutant.file
    text, before = path.read_text(), path.stat()
    try:
        path.write_text(mutant.applied(text))
        os.utime(path, (number, number))
        result, seconds = ask(mutant.asks, output)
    finally:
        path.write_text(text)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if result == TIMED_OUT and ask(mutant.asks, output)[0] != SURVIVED:
        return BROKEN, seconds
    return result, seconds


def by_whom(output: Path) -> str:
    """The first test that failed, from pytest's output."""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output.read_text(errors="replace"), re.MULTILINE)
    return failed[1] if failed else ""


def done(log: str) -> set[str]:
    """The mutants of a run's lines that came out as they must."""
    as_must = "|".join((KILLED, TIMED_OUT, f"equivalent, {SURVIVED}"))
    lines = re.finditer(rf"^\d+/\d+ (?:{as_must}) \([\d.]+ s\) (.+?  ->  .+?)  ", log, re.MULTILINE)
    return {line[1] for line in lines}


def main() -> int:
    """Runs them and says what came of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose part or line holds one of these, in this order")
    parser.add_argument("--trusted", action="store_true", help="do not ask the tests of the tree as it is first")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write there, too, and pass over what it holds")
    args = parser.parse_args()
    wanted = (each for word in args.words or [""] for each in mutants() if word in f"{each.part} {each}")
    before = done(args.log.read_text()) if args.log and args.log.exists() else set()
    chosen = [each for each in dict.fromkeys(wanted) if str(each) not in before]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "tree")
        output = Path(name, "output")
        copied(folder)
        load(folder)
        began, counts = time.monotonic(), Counter()
        tests = tuple(dict.fromkeys(test for each in chosen for test in each.asks))
        if not args.trusted:
            if ask(tests, output, limit=40 * LIMIT)[0] != SURVIVED:
                print(output.read_text(), "\nthe tests fail before anything is mutated", sep="")
                return 1
            print(f"{len(tests)} tests and files pass as it is ({time.monotonic() - began:.0f} s)", flush=True)
        for number, mutant in enumerate(chosen, 1):
            result, seconds = try_one(number, mutant, folder, output)
            wrong = result == BROKEN or (result == SURVIVED) != bool(mutant.equivalent)
            shown = f"equivalent, {result}" if mutant.equivalent else result
            counts[shown if not wrong else f"WRONG: {shown}"] += 1
            line = f"{number}/{len(chosen)} {shown} ({seconds:.1f} s) {mutant}  {by_whom(output)}"
            print(line, flush=True)
            if args.log:
                with args.log.open("a") as log:
                    log.write(line + "\n")
            if result == BROKEN:
                print(output.read_text()[-500:])
    minutes = (time.monotonic() - began) / 60
    print(f"{len(chosen)} mutants in {minutes:.1f} minutes:", ", ".join(f"{n} {what}" for what, n in counts.items()))
    return 1 if any(what.startswith("WRONG") for what in counts) else 0


if __name__ == "__main__":
    sys.exit(main())

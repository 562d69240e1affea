"""Coverage-guided fuzzing: what test_fuzz.py checks, with inputs that atheris chooses (`pip install atheris`).

`python tests/attacks/fuzz.py 60 corpus` gives every reader 60 seconds, and goes on from what the last run left in the
folder `corpus`. It ends with how many inputs there were, and fails for the first that crashes a reader.
"""

import pathlib
import re
import subprocess
import sys

TESTS = pathlib.Path(__file__).parents[1]


def one(test: str, seconds: str, corpus: str) -> None:
    """Fuzz one reader in this process, which libFuzzer ends."""
    import atheris

    sys.path[0] = str(TESTS)
    with atheris.instrument_imports(include=["catnat.trees", "catnat.taxonomy", "catnat.coding", "catnat._checks"]):
        from attacks import test_fuzz
    options = [
        f"-max_total_time={seconds}",
        "-verbosity=0",
        "-print_final_stats=1",
        "-timeout=20",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([sys.argv[0], *options, corpus], getattr(test_fuzz, test).hypothesis.fuzz_one_input)
    atheris.Fuzz()


def main(seconds: str, corpus: str) -> None:
    """Fuzz all readers, one after the other."""
    total = 0
    for test in re.findall(r"^def (test_\w+)", (TESTS / "attacks" / "test_fuzz.py").read_text(), re.MULTILINE):
        folder = pathlib.Path(corpus, test)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "one", test, seconds, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        count = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        if done.returncode or count is None:
            sys.exit(f"{test} crashed:\n{done.stdout}\n{done.stderr}")
        total += int(count[1])
        print(f"{test}: {count[1]} inputs, no crash", flush=True)
    print(f"{total} inputs, no crash")


if __name__ == "__main__":
    (one if sys.argv[1] == "one" else main)(*sys.argv[2 if sys.argv[1] == "one" else 1 :])

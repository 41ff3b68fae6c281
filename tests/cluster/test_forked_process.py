"""Processes that are forked from the fork server and run one function."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy
import pytest
import torch
from sklearn.datasets import load_digits

from dasktune._cluster import fork_server

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not fork_server.IS_SAFE, reason="there is no fork server here"),
]

PROGRAM = '''
import os, signal, subprocess, sys, tempfile
from dasktune._cluster import fork_server
from dasktune._cluster.forked_process import ForkedProcess

def echo():
    """Write the own number and the first line of the input to the errors, and fail if asked to."""
    line = sys.stdin.readline().strip()
    sys.stderr.write(f"{os.getpid()} {os.getcwd()} {'heavy' in sys.modules} {line}")
    if line == "fail":
        raise KeyError("lr")

if __name__ == "__main__":
    import program  # workers find it by this name
    if "fork" in sys.argv:
        fork_server.start(["heavy"])
        assert fork_server.serves({})
    for line in ("go on", "fail", "wait"):
        with tempfile.TemporaryFile() as errors:
            process = ForkedProcess(program.echo, errors=errors)
            assert process.parent != os.getpid()
            if line == "wait":
                assert process.poll() is None
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.stdin.write(line.encode() + b"\\\\n")
                process.stdin.close()
            code = process.wait(60)
            assert process.poll() == code
            errors.seek(0)
            text = errors.read().decode().replace(str(process.pid), "PID")
            text = text.replace(os.getcwd(), "HERE")
            print(code, *text.split("Traceback")[0].split(), text.splitlines()[-1:])
'''


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a new interpreter: forked ones have imported much."""
    own = {name: value for name, value in os.environ.items() if name != fork_server.SWITCH}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**own, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        capture_output=True,
        check=False,
    )


def test_forked_process_runs_one_function(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("\\\\n", "\\n"))
    (tmp_path / "heavy.py").write_text("")
    done = run("program.py", "fork", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0 PID HERE True go on ['PID HERE True go on']",
        "1 PID HERE True fail [\"KeyError: 'lr'\"]",
        "-9 []",
    ]


def test_libraries_are_those_that_the_module_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("user_nets")
    monkeypatch.setitem(sys.modules, "user_nets", module)
    assert fork_server.libraries_of("user_nets") == []
    vars(module).update(np=numpy, Fraction=Fraction, load_digits=load_digits)
    assert fork_server.libraries_of("user_nets") == [load_digits.__module__]
    own = ModuleType("user_layers")  # another module of the user's
    own.layers = torch.nn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user_layers", own)
    vars(module).update(nets=own)
    assert fork_server.libraries_of("user_nets") == [
        load_digits.__module__,
        "torch.nn",
        fork_server.WITH_OPTIMIZERS,
    ]


def test_deterministic_algorithms_need_no_compiler(tmp_path: Path) -> None:
    program = (
        "import sys, torch\n"
        "from dasktune.trainer.settings import use_deterministic_algorithms as use\n"
        "for is_on, warns in ((True, False), (True, True), (False, False)):\n"
        "    use(is_on, warns=warns)\n"
        "    print(torch.are_deterministic_algorithms_enabled(),\n"
        "          torch.is_deterministic_algorithms_warn_only_enabled())\n"
        "print('torch._inductor' in sys.modules)\n"
        "use(True)\n"
        "import torch._inductor.config as compiler\n"
        "print(compiler.deterministic)\n"
        "use(False)\n"
        "print(compiler.deterministic)\n"
    )
    done = run("-c", program, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = ["True False", "True True", "False False", "False", "True", "False"]
    assert done.stdout.splitlines() == lines

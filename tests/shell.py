"""Run console blocks of a page in a real shell. Their gc-assets commands run in this process, which already has a Spark session."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

from click.testing import CliRunner, Result

from gc_assets.cli.main import cli

_CLIENT = """\
    #!{python}
    import json, os, socket, sys
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({address!r})
        named = {{name: value for name, value in os.environ.items() if name.startswith("GC_ASSETS_")}}
        line.sendall(json.dumps([sys.argv[1:], os.getcwd(), named]).encode())
        line.shutdown(socket.SHUT_WR)
        code, out, err = json.load(line.makefile("rb"))
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(code)
    """


def blocks(page: str, language: str = "console") -> list[str]:
    """Return the code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def run_lines(lines: str, at: Path, then: Callable[[list[str], Result], None] = lambda _, __: None) -> str:
    """Run lines in the directory `at` and return their output.

    `gc-assets` runs in this process, and `at/.venv` is an environment that contains it. `then` is called with each command and its result.
    The first line that fails is an error.
    """
    folder = at / ".venv" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "activate").write_text(f"export PATH={folder}:$PATH\n")
    (folder / "python").unlink(missing_ok=True)
    (folder / "python").symlink_to(sys.executable)
    address = str(at / "line")
    (folder / "gc-assets").write_text(dedent(_CLIENT).format(python=sys.executable, address=address))
    (folder / "gc-assets").chmod(0o755)
    return _serve(lines, at, address, then)


def _serve(lines: str, at: Path, address: str, then: Callable[[list[str], Result], None]) -> str:
    before, kept = Path.cwd(), {name: None for name in os.environ if name.startswith("GC_ASSETS_")}
    script = f"set -euo pipefail\nsource .venv/bin/activate\n{lines}"
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address)
        line.listen()
        line.settimeout(0.2)
        shell = subprocess.Popen(
            [shutil.which("bash") or "bash", "-c", script], cwd=at, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            while shell.poll() is None:
                try:
                    connection, _ = line.accept()
                except TimeoutError:
                    continue
                with connection:
                    arguments, where, named = json.load(connection.makefile("rb"))
                    os.chdir(where)
                    result = CliRunner().invoke(cli, arguments, env={**kept, **named})
                    connection.sendall(json.dumps([result.exit_code, result.stdout, result.stderr]).encode())
                    then(arguments, result)
        finally:
            os.chdir(before)
            shell.kill()
        out, err = shell.communicate()
    Path(address).unlink()
    assert shell.returncode == 0, err
    return out

"""Load generators measure the server: guidellm and AIPerf, each in an environment of its own that ``make test-clients`` makes.

They are no part of the suite: together they install two hundred packages.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from specframe_tiny import FOLDER

ROOT = Path(__file__).parents[3]
REQUESTS, NEW = 8, 12
SECONDS = 300
"""Time that a load generator may take: it begins a dozen processes, which takes most of it."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server that runs as a command; SIGTERM ends it, within its grace and without a traceback."""
    command = [sys.executable, "-m", "specframe", "serve", "--port", "0", "--grace", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        line = server.stderr.readline()
        try:
            yield line.removeprefix("serving at ").strip()
        finally:
            server.send_signal(signal.SIGTERM)
            _, rest = server.communicate(timeout=SECONDS)
    assert line.startswith("serving at http://127.0.0.1:")
    assert (server.returncode, rest.strip()) == (128 + signal.SIGTERM, "terminated")


def run(name: str, folder: Path, *arguments: str) -> None:
    """Run a load generator in a folder, and fail with its last lines unless it ends well."""
    program = ROOT / f".venv-{name}" / "bin" / name
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_guidellm_gets_all_its_answers(url: str, route: str, tmp_path: Path) -> None:
    """Every request succeeds and has as many tokens as were asked for, which takes ``ignore_eos`` and a usage in every chunk."""
    tokenizer = f"kind=huggingface_auto,model={FOLDER / 'target'}"
    given = {
        "--backend": f"kind=openai_http,target={url},model=tiny,request_format={route}",
        "--profile": "kind=concurrent,streams=4",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--tokenizer": tokenizer,
        "--data": f"kind=synthetic_text,prompt_tokens=32,output_tokens={NEW}",
        "--output": "kind=json,path=found.json",
    }
    run(
        "guidellm", tmp_path, "run", *(part for pair in given.items() for part in pair), "--disable-console-interactive"
    )
    (found,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    assert found["metrics"]["request_totals"] == {
        "successful": REQUESTS,
        "errored": 0,
        "incomplete": 0,
        "total": REQUESTS,
    }
    assert {one["output_metrics"]["text_tokens"] for one in found["requests"]["successful"]} == {NEW}


@pytest.mark.parametrize("route", ["completions", "chat"])
def test_aiperf_gets_all_its_answers(url: str, route: str, tmp_path: Path) -> None:
    """Every request succeeds and has as many tokens as were asked for."""
    given = {
        "--model": "tiny",
        "--url": url,
        "--endpoint-type": route,
        "--tokenizer": str(FOLDER / "target"),
        "--request-count": str(REQUESTS),
        "--concurrency": "4",
        "--isl": "32",
        "--osl": str(NEW),
        "--extra-inputs": "ignore_eos:true",
        "--ui": "none",
    }
    run("aiperf", tmp_path, "profile", "--streaming", *(part for pair in given.items() for part in pair))
    (file,) = tmp_path.glob("artifacts/*/profile_export_aiperf.csv")
    figures = {row[0]: row[1] for row in csv.reader(file.open()) if len(row) > 1}
    assert float(figures["Request Count"]) == REQUESTS

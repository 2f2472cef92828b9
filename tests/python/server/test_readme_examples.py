"""README's commands run as they are written; the model and the port are those of the test."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

from server.serving import server_process

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Serving\n")[2].partition("\n## ")[0]
PLACE = "http://127.0.0.1:8000"
OPTIONS = ["--isa", "scalar", "--num-threads", "1", "--num-blocks", "256"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def examples() -> list[str]:
    [block] = blocks("sh")
    return [example.strip() for example in block.strip().split("\n\n")]


def test_the_section_has_an_example_of_each_kind() -> None:
    assert len(examples()) == 9
    assert all(example.startswith("curl ") and PLACE in example for example in examples())


def test_the_curl_examples_run_as_they_are_written(tiny_llama: Path) -> None:
    [commands] = blocks("")
    serve = shlex.split(commands.splitlines()[1])
    assert serve[:2] == ["fastpaged", "serve"]
    with server_process([str(tiny_llama), *serve[3:], *OPTIONS]) as (_, url):
        for example in examples():
            command = example.replace(PLACE, url).replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (example, done.stdout, done.stderr)
            if "/metrics" in example:
                assert "fastpaged:requests_started_total" in done.stdout
            elif '"stream": true' in example:
                assert done.stdout.rstrip().endswith("data: [DONE]")
            else:
                assert "error" not in json.loads(done.stdout), example

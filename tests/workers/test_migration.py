"""All commands in the right column of docs/migration.md and all of docs/nemo.md run in order on a tiny model, with
smaller sizes."""

import json
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import main
from speculoos.settings import PROJECT_ROOT
from tests.tiny import make_tiny_base
from tests.tools import cli_docs, zygote
from tests.tools.homes import skip_speed_probe
from tests.tools.ports import free_ports
from tests.workers.conftest import Bench, wait_until
from tracking import db, processes

FORKED = True
pytestmark = pytest.mark.integration
MIGRATION, NEMO = PROJECT_ROOT / "docs" / "migration.md", PROJECT_ROOT / "docs" / "nemo.md"
SMALL = {
    "train": ["max_steps=2", "batch_tokens=256", "max_length=128", "samples=0"],
    "data generate": ["--limit", "8", "--max-tokens", "12"],
    "evaluate": ["--limit", "1", "--max-tokens", "4"],
    "generate": ["--max-tokens", "8"],
    "tune": ["--limit", "1", "--max-tokens", "8"],
    "plan": ["--limit", "1", "--max-tokens", "8", "--batches", "1", "--rounds", "1"],
    "replay record": ["--limit", "2", "--max-tokens", "8"],
}
"""Options that make a command quick, after the page's own, so that they count."""
KEY = "sesame-0815"
ELSEWHERE = ("speculoos up", "speculoos worker")
"""Run by tests/launch."""


def commands() -> list[str]:
    """The commands of the page's third column, in order."""
    rows = [line.split(" | ")[-1] for line in MIGRATION.read_text().splitlines() if line.startswith("| ")]
    return [
        command for cell in rows for command in re.findall(r"`(speculoos [^`]+)`", cell) if command not in ELSEWHERE
    ]


@pytest.fixture
def running(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bench, int]]:
    """Workers, a folder with the files that the pages name, and two servers in the settings that do not run yet."""
    inference, features = free_ports(2)
    variables = {"SPECULOOS_INFERENCE_PORT": str(inference), "SPECULOOS_INFERENCE_TOKEN": KEY, "SERVER_KEY": KEY}
    bench.environment |= {**variables, "SPECULOOS_DEVICE": "cpu"}
    for name in ("SPECULOOS_HOME", "DATABASE_URL", "REDIS_URL", "SPECULOOS_DEVICE", *variables):
        monkeypatch.setenv(name, bench.environment[name])
    bench.worker("gpu"), bench.worker("io"), bench.reconciler()
    monkeypatch.setenv("SPECULOOS_FEATURES_TOKEN", KEY)
    bench.environment["SPECULOOS_FEATURES_TOKEN"] = KEY
    make_tiny_base(tmp_path / "base")
    make_tiny_base(tmp_path / "my-model")
    questions = [f"How many legs have {number} spiders?" for number in range(12)]
    lines(tmp_path / "prompts.jsonl", [{"prompt": question} for question in questions])
    lines(tmp_path / "sft.jsonl", [{"input": question} for question in questions])
    chat = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": "Eight each."}]
        for question in questions
    ]
    lines(tmp_path / "chats.jsonl", [{"messages": messages} for messages in chat])
    suite = [{"question_id": n, "category": "math", "turns": [q, "Why?"]} for n, q in enumerate(questions)]
    lines(tmp_path / "question.jsonl", suite)
    (bench.settings.home / "settings.toml").write_text(
        f'[endpoints.server]\nurl = "http://127.0.0.1:{inference}/v1"\nkey_env = "SERVER_KEY"\n'
        f'[endpoints.big]\nurl = "http://127.0.0.1:{inference}/v1"\nmodel = "mine"\nkey_env = "SERVER_KEY"\n'
        f'[hidden_states.states]\nurl = "http://127.0.0.1:{features}"\nkey_env = "SERVER_KEY"\n'
        f'[hidden_states.big]\nurl = "http://127.0.0.1:{features}"\nkind = "speculoos"\nkey_env = "SERVER_KEY"\n'
    )
    skip_speed_probe(bench.settings.home)
    wait_until(lambda: {"gpu", "io"} <= set(capacities(bench)), 60, "workers, or commands start their own")
    monkeypatch.chdir(tmp_path)
    yield bench, features


def capacities(bench: Bench) -> dict[str, int]:
    with db.reading(bench.settings) as session:
        return processes.capacities(session)


def lines(file: Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.timeout(600)
def test_every_command_of_the_page_runs(running: tuple[Bench, int], capfd: pytest.CaptureFixture[str]) -> None:
    page_commands = commands()
    assert len(page_commands) > 30
    for command in page_commands:
        run(*running, command, capfd)


@pytest.mark.timeout(600)
def test_every_command_of_the_nemo_page_runs(running: tuple[Bench, int], capfd: pytest.CaptureFixture[str]) -> None:
    """Our inference server replaces vLLM and serves the model under the same name."""
    page_commands = re.findall(r"^ {4}((?:speculoos|vllm) .+)$", NEMO.read_text(), flags=re.MULTILINE)
    assert len(page_commands) > 10
    for command in page_commands:
        run(*running, "speculoos serve" if command.startswith("vllm") else command, capfd)


def run(bench: Bench, features: int, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Run one command of a page with small sizes."""
    arguments = shlex.split(command.replace("=32000", "=256").replace("=2048", "=16"))[1:]
    if "serve" in arguments[:2]:
        serve(bench, [*arguments, "--port", str(features)] if arguments[0] == "features" else arguments)
        return
    name = next(name for name in command_names() if command.startswith(f"speculoos {name} "))
    sizes = SMALL.get(name, [])
    if name == "train" and arguments[1].startswith("eagle3"):
        sizes = [*sizes, "aux_layers=[0, 1, 2]"]  # the defaults of so few layers are not three different ones
    arguments += [argument for size in sizes for argument in ("--set", size)] if name == "train" else sizes
    arguments += ["--wait"] if name in ("train", "data generate") and "--wait" not in arguments else []
    assert main(arguments) == 0, f"{command}\n{capfd.readouterr().err[-3000:]}\n{bench.output()[-3000:]}"


def command_names() -> list[str]:
    """Names of all commands, longest first."""
    names = (
        name.removeprefix("speculoos ") for name, _ in cli_docs.commands(cli_docs.typer.main.get_command(cli_docs.app))
    )
    return sorted(names, key=len, reverse=True)


def serve(bench: Bench, arguments: list[str]) -> None:
    """Start a server that runs until the end of the test."""
    out = bench.settings.home / f"{arguments[0]}.log"
    with out.open("wb") as file:
        process = zygote.begin("cli.main", arguments, bench.environment, file.fileno())
    bench.processes.append(process)
    port = int(arguments[-1]) if arguments[-1].isdigit() else int(bench.environment["SPECULOOS_INFERENCE_PORT"])
    wait_until(lambda: accepts(port), 240, " ".join(arguments), out.read_text)


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0

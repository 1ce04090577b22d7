"""The batch script for SLURM, run on this machine: `srun` and `scontrol` are stand-ins that run commands locally,
endpoints are real servers on their own addresses, and `speculoos` is a stand-in that records its calls."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools.ports import free_ports

pytestmark = pytest.mark.integration

CLONE = Path(__file__).resolve().parents[3]
SCRIPT = CLONE / "recipes" / "slurm" / "speculoos.sbatch"
NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
SRUN = """#!/bin/bash
words="srun $*"
echo "${words//$'\\n'/ }" >>"$CALLS"
while [[ $1 == --* ]]; do
    [[ $1 != --nodelist=* ]] || export SLURMD_NODENAME=${1#--nodelist=}
    shift
done
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >>"$CALLS"
printf '%s\\n' $NODES
"""
SPECULOOS = """#!/bin/bash
called() { echo "speculoos $*" >>"$CALLS"; }
ok() { [ "$(grep -cE "^($2)" "$CALLS")" -ge "$1" ] && echo true || echo false; }
case $1 in
doctor) called "$@"
    nodes=$(wc -w <<<"$NODES")
    printf '{"parts": {"broker": {"ok": true}, "reconciler": {"ok": %s}, "worker-io": {"ok": %s}, ' \\
        "$(ok 1 'python -m workers')" "$(ok 1 'speculoos worker --queue io')"
    printf '"worker-gpu": {"ok": %s}}}' \\
        "$(ok $((nodes - ${SERVE_NODES:-nodes})) 'speculoos (worker --queue gpu|train-node)')"
    exit 1 ;;
worker|train-node) trap 'echo "worker $3 stopped" >>"$CALLS"; exit 0' TERM
    cp "$SPECULOOS_HOME/settings.toml" "$SEEN.$3"
    called "$@"
    while sleep 0.1; do :; done ;;
*) trap 'echo "command stopped" >>"$CALLS"; exit 9' TERM
    called "$@"
    for _ in $(seq "$TENTHS"); do sleep 0.1; done; exit "$STATUS" ;;
esac
"""
"""A call is recorded once it can be stopped; `doctor` finds well what has been recorded."""
PYTHON = f"""#!/bin/bash
if [ "$1" = -m ]; then
    trap 'echo "reconciler stopped" >>"$CALLS"; exit 0' TERM
    echo "python $*" >>"$CALLS"
    while sleep 0.1; do :; done
fi
exec {sys.executable} "$@"
"""
SLEEP = f"""#!/bin/bash
[ "$1" != 1 ] || set -- 0.1  # the script's pauses
exec {shutil.which("sleep")} "$@"
"""
SERVE = f"""trap 'echo "endpoint on $SLURMD_NODENAME stopped" >>"$CALLS"; kill $!; exit 0' TERM
{sys.executable} -m http.server --bind "$SLURMD_NODENAME" "$SERVE_PORT" 2>/dev/null &
wait"""


@dataclass
class Allocation:
    """The folder and environment of the script, and the calls it made."""

    folder: Path
    environment: dict[str, str]

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(SCRIPT), *arguments],
            env={**self.environment, **environment},
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        process = self.start(*arguments, **environment)
        stderr = process.communicate(timeout=120)[1]
        return process.returncode, stderr

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def index_of_call(self, begin: str) -> int:
        """Index of the first call that starts with `begin`."""
        return next(i for i, call in enumerate(self.calls) if call.startswith(begin))


@pytest.fixture
def allocation(tmp_path: Path) -> Allocation:
    programs = {"srun": SRUN, "scontrol": SCONTROL, "speculoos": SPECULOOS, "python": PYTHON, "sleep": SLEEP}
    for name, text in programs.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "tmp").mkdir()
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "NODES": " ".join(NODES[:2]),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_PER_TASK": "8",
        "TMPDIR": str(tmp_path / "tmp"),
        "REDIS_URL": "redis://shared/0",
        "DATABASE_URL": "postgresql://shared/x",
        "SPECULOOS_STORE": "s3://bucket/x",
        "MODEL": "owner/model",
        "SERVE_COMMAND": SERVE,
        "SERVE_PORT": str(free_ports(1)[0]),
        "READY_PATH": "/",
        "STOP_SECONDS": "10",
        "START_SECONDS": "90",
        "CALLS": str(tmp_path / "calls"),
        "SEEN": str(tmp_path / "seen"),
        "TENTHS": "5",
        "STATUS": "0",
    }
    (tmp_path / "calls").touch()
    return Allocation(tmp_path, environment)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def check_all_stopped(allocation: Allocation, nodes: int = 2) -> None:
    """Workers stopped before endpoints, and no process or home is left."""
    calls = allocation.calls
    stopped = [call for call in calls if call.endswith(" stopped")]
    assert stopped.count("worker io stopped") == 1 and stopped.count("reconciler stopped") == 1
    ends = [i for i, call in enumerate(calls) if call.startswith("endpoint on ")]
    assert len(ends) == nodes and min(ends) > calls.index("worker io stopped")
    # The port alone would also be found in the long numbers of a browser's command line.
    pgrep = ["pgrep", "-f", f"http.server --bind [^ ]+ {allocation.environment['SERVE_PORT']}$"]
    wait_for(lambda: not subprocess.run(pgrep, capture_output=True).stdout, "the endpoints' end")
    assert list((allocation.folder / "tmp").iterdir()) == [], "a home was left"


def test_the_script_is_bash() -> None:
    assert subprocess.run(["bash", "-n", SCRIPT], capture_output=True).returncode == 0
    directives = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --signal=B:TERM@180" in directives and len(directives) == 8


def test_every_variable_of_the_header_is_read_with_the_default_it_names() -> None:
    header, _, body = SCRIPT.read_text().partition("\nset -u\n")
    documented = dict(re.findall(r"(?:^#| ) {2,}([A-Z_]+)=(\S*)", header, re.MULTILINE))
    documented["PYTHON"] = "python"
    assert len(documented) == 15
    for name, default in documented.items():
        assert re.search(rf"\b{name}=\$\{{{name}:-", body), name
        assert not default or f"{name}=${{{name}:-{default}}}" in body, (name, default)


def test_endpoints_come_first_then_workers_then_the_command(allocation: Allocation) -> None:
    status, stderr = allocation.run("data", "generate", "--prompts", "my prompts", "--endpoint", "slurm")
    assert status == 0, stderr
    port = allocation.environment["SERVE_PORT"]
    order = [
        "scontrol show hostnames node[1-2]",
        "srun --nodes=1 --ntasks=1 --overlap --nodelist=127.0.0.1 --kill-on-bad-exit=1 --cpus-per-task=8 bash -c trap",
        "python -m workers.supervise.reconcile",
        "speculoos worker --queue io --count 1",
        "speculoos doctor --json",
        "speculoos data generate --prompts my prompts --endpoint slurm",
        "worker io stopped",
        "endpoint on 127.0.0.",
        "srun --nodes=2 --ntasks-per-node=1 --overlap rm -rf",
    ]
    indexes = [allocation.index_of_call(begin) for begin in order]
    assert indexes[:2] == sorted(indexes[:2]) and indexes[4:] == sorted(indexes[4:]) and max(indexes[1:4]) < indexes[5]
    assert sum(call.startswith("srun") and "bash -c trap" in call for call in allocation.calls) == 2
    settings = (allocation.folder / "seen.io").read_text()
    urls = ", ".join(f'"http://{node}:{port}/v1"' for node in NODES[:2])
    assert (
        f"[endpoints.slurm] # of SLURM job 4711\nurl = [{urls}]\n" in settings and 'model = "owner/model"' in settings
    )
    check_all_stopped(allocation)


def test_nodes_that_do_not_serve_get_workers_of_the_gpu_queue(allocation: Allocation) -> None:
    nodes = {"NODES": " ".join(NODES), "SERVE_NODES": "1", "GPU_WORKERS": "2", "IO_WORKERS": "3"}
    status, stderr = allocation.run("train", "medusa", **nodes)
    assert status == 0, stderr
    gpu = [call for call in allocation.calls if call.endswith("speculoos worker --queue gpu --count 2")]
    steps = [call for call in gpu if call.startswith("srun")]
    worker_nodes = sorted(re.findall(r"--nodelist=(\S+)", " ".join(steps)))
    assert worker_nodes == [*NODES[1:]]
    assert any(call.endswith("speculoos worker --queue io --count 3") for call in allocation.calls)
    assert sum(call == "worker gpu stopped" for call in allocation.calls) == 2
    check_all_stopped(allocation, nodes=1)


@pytest.mark.parametrize("status", [1, 4])
def test_a_failed_job_stops_everything_with_its_status(allocation: Allocation, status: int) -> None:
    ended, stderr = allocation.run("jobs", "follow", "x", STATUS=str(status))
    assert ended == status and f"exit status {status}" in stderr
    check_all_stopped(allocation)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything(allocation: Allocation, number: int) -> None:
    process = allocation.start("jobs", "follow", "x", TENTHS="600")
    wait_for(lambda: "speculoos jobs follow x" in allocation.calls, "the command")
    process.send_signal(number)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 143 and "told to stop" in stderr
    assert "command stopped" in allocation.calls
    assert not any("rm -rf" in call for call in allocation.calls), "after scancel no step can be started"
    check_all_stopped(allocation)


def test_a_training_on_several_nodes_has_a_worker_on_the_first(allocation: Allocation) -> None:
    nodes = {"NODES": " ".join(NODES), "SERVE_NODES": "0", "IO_WORKERS": "0", "RDZV_PORT": "29400"}
    status, stderr = allocation.run("train", "medusa", **nodes)
    assert status == 2 and "unset SPECULOOS_STORE" in stderr
    (allocation.folder / "home").mkdir()
    nodes |= {"SPECULOOS_STORE": "", "SPECULOOS_HOME": str(allocation.folder / "home"), "TENTHS": "1"}
    status, stderr = allocation.run("train", "medusa", **nodes)
    assert status == 0, stderr
    assert "speculoos worker --queue gpu" in allocation.calls, "one worker for each GPU, of the first node only"
    assert allocation.calls.count(f"speculoos train-node {NODES[0]}:29400") == 2
    assert f"speculoos train medusa --nodes 3 --rdzv-endpoint {NODES[0]}:29400" in allocation.calls


def test_an_endpoint_that_ends_at_once_ends_the_job_before_a_worker_is_started(allocation: Allocation) -> None:
    status, stderr = allocation.run("jobs", "follow", "x", SERVE_COMMAND="exit 3")
    assert status == 1 and "ended before it was ready" in stderr
    assert not any(call.startswith("speculoos") for call in allocation.calls)


def test_an_endpoint_that_never_answers_is_not_waited_for_for_ever(allocation: Allocation) -> None:
    status, stderr = allocation.run("jobs", "follow", "x", SERVE_COMMAND="exec sleep 60", START_SECONDS="2")
    assert status == 1 and "not ready after 2 s" in stderr


def test_a_worker_that_dies_ends_the_job(allocation: Allocation) -> None:
    process = allocation.start("jobs", "follow", "x", TENTHS="600")
    wait_for(lambda: "speculoos jobs follow x" in allocation.calls, "the command")
    workers = subprocess.run(
        ["pgrep", "-f", f"{allocation.folder}/bin/speculoos worker"], capture_output=True, text=True
    )
    assert workers.stdout
    for pid in workers.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and "a worker ended before the job did" in stderr
    assert "command stopped" in allocation.calls and "reconciler stopped" in allocation.calls


def test_a_home_that_all_nodes_see_gets_the_endpoints_and_loses_them_again(allocation: Allocation) -> None:
    home = allocation.folder / "home"
    home.mkdir()
    others = '[endpoints.team]\nurl = "https://llm.example.com/v1"\n'
    (home / "settings.toml").write_text(others)
    shared_home = {"SPECULOOS_STORE": "", "SPECULOOS_HOME": str(home)}
    status, stderr = allocation.run("jobs", "follow", "x", **shared_home)
    assert status == 0, stderr
    seen = (allocation.folder / "seen.io").read_text()
    assert seen.startswith(others) and "[endpoints.slurm]" in seen
    assert (home / "settings.toml").read_text() == others
    (home / "settings.toml").write_text(others.replace("team", "slurm"))
    status, stderr = allocation.run("jobs", "follow", "x", **shared_home)
    assert status == 2 and "choose another name by ENDPOINT=" in stderr
    assert (home / "settings.toml").read_text() == others.replace("team", "slurm")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"REDIS_URL": ""}, "REDIS_URL is not set"),
        ({"DATABASE_URL": ""}, "DATABASE_URL is not set"),
        ({"SPECULOOS_STORE": ""}, "set SPECULOOS_STORE"),
        ({"MODEL": ""}, "MODEL is not set"),
        ({"SERVE_NODES": "3"}, "SERVE_NODES=3, but there are 2 nodes"),
        ({"SLURM_JOB_ID": ""}, "run me by sbatch"),
    ],
)
def test_a_missing_variable_is_reported_before_anything_starts(
    allocation: Allocation, changed: dict[str, str], message: str
) -> None:
    status, stderr = allocation.run("jobs", "follow", "x", **changed)
    assert status == 2 and message in stderr and len(stderr.splitlines()) == 1
    assert [call.partition(" ")[0] for call in allocation.calls] == ["scontrol"]


def test_no_command_is_no_job(allocation: Allocation) -> None:
    status, stderr = allocation.run()
    assert status == 2 and "say which command ends with the job" in stderr
    assert json.dumps(allocation.calls).count("srun") == 0


BY_HAND = SCRIPT.with_name("shards.sbatch")
ON_EACH_NODE = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" || status=1; done
exit ${status:-0}
"""
ANSWERING = """#!/bin/bash
echo "node $SLURM_NODEID: $*" >>"$CALLS"
[ -z "${DATABASE_URL:-}${REDIS_URL:-}${SPECULOOS_STORE:-}" ] || exit 3
mkdir -p "$SPECULOOS_HOME"
case "$1 $2" in
"data generate") [[ $* != *"prompts $FAILS "* ]] ;;
"data export") cp /dev/null "${@: -1}" ;;
esac
"""


def test_shards_by_hand_are_divided_among_nodes_and_only_missing_ones_are_made(tmp_path: Path) -> None:
    """Two nodes take two shards each from number 1 on: shards 1 and 2, then 3, the last one."""
    for name, text in {"srun": ON_EACH_NODE, "speculoos": ANSWERING}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    for number in range(4):
        (tmp_path / "shards").mkdir(exist_ok=True)
        (tmp_path / "shards" / f"shard-0000{number}.jsonl").touch()
    (tmp_path / "tmp").mkdir()
    calls = tmp_path / "calls"
    environment = {
        **{"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"), "CALLS": str(calls)},
        **{"SLURM_JOB_ID": "4711", "MODEL": "owner/model", "FIRST_SHARD": "1", "SHARDS_PER_NODE": "2", "FAILS": "2"},
        "DATABASE_URL": "postgresql://shared/x",
    }

    def run(*arguments: str, **changes: str) -> tuple[int, str]:
        command = ["bash", str(BY_HAND), *arguments]
        completed = subprocess.run(
            command, env={**environment, **changes}, cwd=tmp_path, capture_output=True, text=True
        )
        return completed.returncode, completed.stderr

    status, stderr = run("shards", "answers", "--temperature", "0.7")
    assert status == 1 and "shard-00002.jsonl was not answered on node 0" in stderr
    assert sorted(path.name for path in (tmp_path / "answers").iterdir()) == ["shard-00001.jsonl", "shard-00003.jsonl"]
    assert calls.read_text().splitlines()[:4] == [
        "node 0: models add owner/model --name base",
        "node 0: data import shards/shard-00001.jsonl --name prompts 1",
        "node 0: data generate --prompts prompts 1 --model base --name answers 1 --wait --temperature 0.7",
        "node 0: data export answers 1 --output answers/shard-00001.jsonl",
    ]
    assert not list((tmp_path / "tmp").iterdir()), "a home was left"

    calls.unlink()
    assert run("shards", "answers", FAILS="none") == (0, "")
    assert all("2" in call or "models add" in call for call in calls.read_text().splitlines())
    assert len(list((tmp_path / "answers").iterdir())) == 3
    for arguments, changes, message in (
        (["shards"], {}, "where the answers go"),
        (["empty", "answers"], {}, "there is no *.jsonl here"),
        (["shards", "answers"], {"MODEL": ""}, "MODEL is not set"),
        (["shards", "answers"], {"FIRST_SHARD": "x"}, "expected whole numbers"),
    ):
        status, stderr = run(*arguments, **changes)
        assert status == 2 and message in stderr

"""A checkpoint of some gigabytes, exported by a job of a running workbench and downloaded in two parts: what it costs.

    python -m benchmarks.large_export [--gigabytes 2] [--kinds medusa draft] [--json OUT]

Everything is real: `speculoos up` in a home of its own, the worker's child process, the download over HTTP. Weights are
random: Medusa heads for vLLM and, with the pickle beside them, for the Medusa repository; a standalone draft for
transformers. Asked of every export:

- The child's peak of resident memory (VmHWM, so pages of mapped files count), above a process that has the same modules
  and the base and nothing else: less than 1 GB.
- One zip and its report under exports/ afterwards and nothing else; the download makes no copy, and the web process
  stays as it was.
- A download that is broken off after a third goes on from there (Range, If-Range); the sums in the zip hold.

Fails when one of these does not hold. Takes minutes, and about four times the size in disk.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil

from formats.store import exports_folder
from models.base import Base as LoadedBase
from models.base import load_base
from models.checkpoints import save_draft
from models.medusa import MedusaConfig, MedusaHeads
from models.standalone import StandaloneDraft
from models.tiny import make_tiny_base
from speculoos.files import write_json
from speculoos.sums import SUMS
from tests.tools.homes import add_base
from tests.tools.running import Up
from tests.tools.watching import watched
from tracking import db
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Job, new_id
from workers.ask.requests import Export
from workers.ask.submit import submit

HIDDEN, VOCABULARY, WIDE = 1024, 64_000, 2048
MOST_ABOVE, MOST_OF_WEB = 1e9, 100e6
JOB_SECONDS = 3600.0
FLOOR = """
import sys
import formats.validate, formats.proof, formats.streamed, workers.child.main, workers.child.work.export
from benchmarks.large_export import status
from models.base import load_base
base = load_base(sys.argv[1])
print(status("self", "VmRSS"))
"""
FORMATS = {"medusa": ("vllm", "medusa"), "draft": ("huggingface",)}
HEADERS = {"Accept-Encoding": "identity"}


@dataclass
class Found:
    """One export. Bytes and seconds; `above` is the child's peak less a process with the base alone."""

    kind: str
    format: str
    checkpoint: int
    zipped: int
    seconds: float
    peak: int
    above: int
    web_grew: int
    left: list[str]
    resumed: bool
    sums_hold: bool

    @property
    def good(self) -> bool:
        one = self.left == [f"{self.format}.json", f"{self.format}.zip"]
        little = self.above < MOST_ABOVE and self.web_grew < MOST_OF_WEB
        return one and little and self.resumed and self.sums_hold


def make(kind: str, size: float, base: LoadedBase, folder: Path) -> Path:
    """A checkpoint of about `size` bytes."""
    if kind == "medusa":
        heads = max(round(size / (4 * HIDDEN * (VOCABULARY + HIDDEN))), 1)
        return save_draft(folder, MedusaHeads.from_base(MedusaConfig(HIDDEN, VOCABULARY, heads, 1), base), {})
    layer = 4 * (4 * WIDE * WIDE + 3 * WIDE * 4 * WIDE)
    layers = max(round((size - 8 * WIDE * VOCABULARY) / layer), 1)
    shape = {"hidden_size": WIDE, "intermediate_size": 4 * WIDE, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    more = {"num_attention_heads": 16, "num_key_value_heads": 16}
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        model = load_base(make_tiny_base(Path(made) / "wide", **shape, **more)).model
        return save_draft(folder, StandaloneDraft(model), {})


def add(up: Up, base_id: str, kind: str, size: float, base: LoadedBase) -> str:
    """The checkpoint's id, its row ready."""
    row_id = new_id()
    (up.settings.home / "checkpoints" / row_id).mkdir(parents=True)
    folder = make(kind, size, base, up.settings.home / "checkpoints" / row_id / "attempt-1")
    values = {"base_id": base_id, "method": kind, "state": "ready", "path": str(folder)}
    return up.add(Checkpoint(id=row_id, name=f"{kind}-{size:.0f}", **values))


def export(up: Up, checkpoint_id: str, form: str) -> tuple[int, float]:
    """The job's child at its largest, and the seconds it took."""
    job, peak = submit(Export(checkpoint_id, form), settings=up.settings), 0
    deadline = time.monotonic() + JOB_SECONDS
    while job.state not in FINISHED and time.monotonic() < deadline:
        time.sleep(0.02)
        peak = max(peak, child_peak(job.id))
        with db.reading(up.settings) as session:
            job = session.get_one(Job, job.id)
    assert job.state == "SUCCEEDED", f"the export is {job.state}: {job.error}"
    return peak, (job.finished_at - job.started_at).total_seconds()


def child_peak(job_id: str) -> int:
    """VmHWM of the child at work on the job so far; 0 where there is none. The kernel keeps it, so nothing between two
    looks is missed but what comes after the last."""
    for process in psutil.process_iter(["cmdline"]):
        if "workers.child.main" in (words := process.info["cmdline"] or []) and job_id in words:
            return status(process.pid, "VmHWM")
    return 0


def status(pid: int | str, field: str) -> int:
    """Bytes of a field of /proc/PID/status; 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


@contextmanager
def largest(pid: int) -> Iterator[list[int]]:
    """While open, how far the process's resident memory grew, in the list's one element."""
    before, found = status(pid, "VmRSS"), [0]

    def look() -> None:
        found[0] = max(found[0], status(pid, "VmRSS") - before)

    with watched(look, 0.02):
        yield found


def download(up: Up, checkpoint_id: str, form: str, to: Path) -> bool:
    """In two parts; whether the second began where the first was broken off."""
    address = f"{up.url}/api/checkpoints/{checkpoint_id}/exports/{form}"
    with httpx.Client(trust_env=False, timeout=120, headers=HEADERS) as client, open(to, "wb") as out:
        with client.stream("GET", address) as answer:
            whole, tag = int(answer.headers["content-length"]), answer.headers["etag"]
            for piece in answer.iter_raw(1 << 20):
                out.write(piece)
                if out.tell() > whole / 3:
                    break
        at = out.tell()
        with client.stream("GET", address, headers={"Range": f"bytes={at}-", "If-Range": tag}) as answer:
            for piece in answer.iter_raw(1 << 20):
                out.write(piece)
            return answer.status_code == 206 and out.tell() == whole


def sums_hold(archive: Path) -> bool:
    """Whether every file in the zip has the sum that its SHA256SUMS says, and none is unnamed."""
    with zipfile.ZipFile(archive) as opened:
        (sums,) = (name for name in opened.namelist() if name.rpartition("/")[2] == SUMS)
        lines, folder = opened.read(sums).decode().splitlines(), sums.removesuffix(SUMS)
        wanted = {folder + name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        found = {}
        for name in {*opened.namelist()} - {sums}:
            with opened.open(name) as content:
                found[name] = hashlib.file_digest(content, "sha256").hexdigest()
        return found == wanted


def measure(up: Up, base_id: str, base: LoadedBase, kinds: list[str], size: float, scratch: Path) -> Iterator[Found]:
    """Every kind in every format of it."""
    command = [sys.executable, "-c", FLOOR, str(base.path)]
    floor = int(subprocess.run(command, env=up.environment, check=True, capture_output=True, text=True).stdout)
    for kind in kinds:
        large = add(up, base_id, kind, size, base)
        for form in FORMATS[kind]:
            yield measured(up, kind, large, form, floor, scratch)


def measured(up: Up, kind: str, checkpoint_id: str, form: str, floor: int, scratch: Path) -> Found:
    peak, seconds = export(up, checkpoint_id, form)
    folder, got = exports_folder(up.settings.home, checkpoint_id), scratch / f"{form}.zip"
    zipped = (folder / f"{form}.zip").stat().st_size
    with largest(up.pid("web")) as grew:
        resumed = download(up, checkpoint_id, form, got)
    left = sorted(path.name for path in folder.iterdir() if path.stem == form or path.name.startswith("."))
    with db.reading(up.settings) as session:
        weights = Path(session.get_one(Checkpoint, checkpoint_id).path, "model.safetensors").stat().st_size
    hold = sums_hold(got)
    got.unlink()
    return Found(kind, form, weights, zipped, round(seconds, 1), peak, peak - floor, grew[0], left, resumed, hold)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the checkpoints")
    parser.add_argument("--kinds", nargs="+", default=[*FORMATS], choices=[*FORMATS])
    parser.add_argument("--folder", type=Path, help="where the home is made; default: the system's for temporary files")
    parser.add_argument("--json", type=Path, help="file for the figures")
    asked = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="large-export-", dir=asked.folder) as made:
        scratch = Path(made)
        shape = {"hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
        folder = make_tiny_base(scratch / "base", **shape, tie_word_embeddings=True)
        up = Up(scratch / "home")
        try:
            up.start()
            base = load_base(folder)
            for one in measure(up, add_base(up.settings, folder), base, asked.kinds, asked.gigabytes * 1e9, scratch):
                found.append(one)
                print(f"{'ok  ' if one.good else 'FAIL'} {one}", flush=True)
        finally:
            up.end()
    if asked.json:
        write_json(asked.json, [{**asdict(one), "good": one.good} for one in found])
    return 0 if found and all(one.good for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())

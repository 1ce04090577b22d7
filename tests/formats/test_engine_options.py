"""Options of the servers that jobs start."""

import json
from pathlib import Path

from formats.engines import ENGINES, LaunchOptions


def test_vllm_gets_the_schedule_of_measured_loads(tmp_path: Path) -> None:
    launch = {"base": tmp_path, "model": "m", "port": 1, "key": "k", "folder": tmp_path, "draft": tmp_path}
    for schedule in ([], [[1, 4, 3], [16, 16, 0]]):
        arguments = ENGINES["vllm"].arguments(LaunchOptions(**launch, method="eagle3", tokens=3, schedule=schedule))
        options = json.loads(arguments[arguments.index("--speculative-config") + 1])
        assert options["num_speculative_tokens"] == 3
        assert options.get("num_speculative_tokens_per_batch_size", []) == schedule

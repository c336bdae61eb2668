"""`make clients`: every client against Baton and against vLLM's own server, with the same model.

Both servers run at once on real vLLM. A client passes a turn when what it made of the answers is
the same at both and not empty. The exit status is 1 if one does not. `--only KEY ...` runs these
clients alone and leaves the table as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.model.embedded import ensure_embedded_model
from tests.clients.recorder import Recorded, recorded, shape
from tests.clients.scenarios import CLIENTS, RECORDED, ROOT, TABLE, Client
from tests.clients.table import Result, table
from tests.e2e.api.peer import peer
from tests.rigs.fleet import fleet

BUILD = ROOT / "build" / "clients"
PROGRAMS = Path(__file__).parent / "programs"
#: Tokens; agents send long prompts, and a token of the embedded model is a byte.
CONTEXT = 49_152
#: Letters that end an answer, so that agents see answers that end.
ENDS = "jkqxz"
SECONDS = 600
ASK, AGAIN = "Where does the river rise?", "And where does it end?"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients")
    parser.add_argument("--only", nargs="+", metavar="KEY", default=[])
    only = parser.parse_args().only
    clients = [client for client in CLIENTS if not only or client.key in only]
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        model = long_model(Path(folder))
        settings = {
            "BATON_MODEL__PATH": str(model),
            "BATON_MODEL__NAME": "baton-tiny",
            "BATON_MODEL__DTYPE": "float32",
            "BATON_MODEL__TOOL_PARSER": "hermes",
            "BATON_GATEWAY__TEXT": "vllm",
        }
        with fleet("--prefill", "1", "--decode", "1", env=settings) as ours:
            ours.wait_ready()
            with peer(model) as theirs:
                results = [run(client, ours.url, theirs) for client in clients]
    if not only:
        TABLE.write_text(table(results, versions()))
    return 0 if all(result.is_same for result in results) else 1


def long_model(folder: Path) -> Path:
    """The embedded model, said to have a longer context, and whose answers are greedy and short."""
    model = folder / "model"
    shutil.copytree(ensure_embedded_model(), model)
    about = json.loads((model / "config.json").read_text())
    about["max_position_embeddings"] = CONTEXT
    (model / "config.json").write_text(json.dumps(about))
    generation: dict[str, Any] = {"eos_token_id": [about["eos_token_id"], *ENDS.encode()]}
    generation |= {"top_k": 1, "max_new_tokens": 64}
    (model / "generation_config.json").write_text(json.dumps(generation))
    return model


def run(client: Client, ours: str, theirs: str) -> Result:
    outcomes, requests = {}, []
    for name, url in (("ours", ours), ("theirs", theirs)):
        with recorded(url) as recorder:
            outcomes[name] = outcome(client, recorder.url)
        if name == "ours":
            requests = recorder.requests
    result = Result(client, outcomes["ours"], outcomes["theirs"])
    for turn in client.turns:
        said = (result.ours.get(turn), result.theirs.get(turn))
        print(f"{client.name}, {turn}: {result.cell(turn)} {said}")
    record(client, requests)
    return result


def outcome(client: Client, url: str) -> dict[str, Any]:
    if client.runtime in {"python", "node"}:
        program = f"{client.runtime}_clients"
        interpreter = str(BUILD / "venv/bin/python") if client.runtime == "python" else "node"
        file = PROGRAMS / f"{program}.{'py' if client.runtime == 'python' else 'mjs'}"
        if client.runtime == "node":
            file = Path(shutil.copy(file, BUILD / "node"))
        said = execute([interpreter, str(file), client.key, url], {})
        return dict(json.loads(said.splitlines()[-1])) if said else {}
    agent = codex if client.runtime == "codex" else claude
    # Agents tell the model where they are, so that it is the same place for both servers.
    home = BUILD / "agent"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    return agent(url, str(home))


def codex(url: str, home: str) -> dict[str, Any]:
    instructions = Path(home) / "instructions.md"
    instructions.write_text("Answer in few words.\n")
    provider = f'{{name="b",base_url="{url}/v1",wire_api="responses",env_key="CLIENT_KEY"}}'
    about = {
        "model": '"baton-tiny"',
        "model_provider": '"b"',
        "model_providers.b": provider,
        "model_instructions_file": f'"{instructions}"',
        "model_reasoning_summary": '"none"',
    }
    options = ["--json", "--skip-git-repo-check"]
    for key, value in about.items():
        options += ["-c", f"{key}={value}"]
    program = [str(BUILD / "node/node_modules/.bin/codex"), "exec"]
    environment = {"CODEX_HOME": home, "CLIENT_KEY": "none", "HOME": home}
    first = execute([*program, *options, ASK], environment, home)
    second = execute([*program, "resume", *options, "--last", AGAIN], environment, home)
    return {"first turn": last_message(first), "second turn": last_message(second)}


def last_message(said: str) -> Any:
    """Of Codex's events."""
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    texts = [event["item"].get("text") for event in events if event["type"] == "item.completed"]
    return texts[-1] if texts else {"error": [event["type"] for event in events] or "no event"}


def claude(url: str, home: str) -> dict[str, Any]:
    program = [str(BUILD / "node/node_modules/.bin/claude"), "-p", "--output-format", "json"]
    program += ["--system-prompt", "Answer in few words.", "--model", "baton-tiny"]
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_SMALL_FAST_MODEL": "baton-tiny",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64",
        "CLAUDE_CONFIG_DIR": home,
        "HOME": home,
    }
    answers = [
        execute([*program, ASK], environment, home),
        execute([*program, "--continue", AGAIN], environment, home),
    ]
    said = [json.loads(answer or "{}") for answer in answers]
    turns = [{"result": one.get("result"), "error": one.get("is_error")} for one in said]
    return dict(zip(("first turn", "second turn"), turns, strict=True))


def execute(command: list[str], environment: dict[str, str], folder: str | None = None) -> str:
    """What it printed; its complaints go on to this terminal."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        command,
        cwd=folder or BUILD,
        env=os.environ | quiet | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout


def record(client: Client, requests: list[Recorded]) -> None:
    """One of each shape."""
    kept = [
        {"path": one.path, "body": shape(one.body)}
        for one in requests
        if one.method == "POST" and one.body is not None
    ]
    different = list({json.dumps(one, sort_keys=True): one for one in kept}.values())
    file = RECORDED / f"{client.key}.json"
    file.write_text(json.dumps(different, indent=1, sort_keys=True, ensure_ascii=True) + "\n")


def versions() -> dict[str, str]:
    """By package, of both environments."""
    listed = execute([str(BUILD / "venv/bin/python"), "-m", "pip", "list", "--format", "json"], {})
    found = {entry["name"]: entry["version"] for entry in json.loads(listed)}
    pinned = json.loads((Path(__file__).parent / "package.json").read_text())
    return found | {f"npm:{name}": given for name, given in pinned["dependencies"].items()}


if __name__ == "__main__":
    sys.exit(main())

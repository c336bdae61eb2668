"""A client of its own: streams without end, and writes down when each chunk came.

Arguments: the gateway's port, the file to write to.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path

BODY = {
    "model": "baton-tiny",
    "prompt": "healthy",
    "max_tokens": 1500,
    "stream": True,
    "ignore_eos": True,
}


def main(port: int, path: Path) -> None:
    with path.open("w", buffering=1, encoding="ascii") as file:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            headers = {"Content-Type": "application/json"}
            try:
                connection.request("POST", "/v1/completions", json.dumps(BODY), headers)
                response = connection.getresponse()
                while response.readline():
                    file.write(f"{time.monotonic():.6f}\n")
            except OSError:
                time.sleep(0.05)  # the gap until the next chunk is noted
            finally:
                connection.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

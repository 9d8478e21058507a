"""The browser example against a real `watertight serve` that is killed and started again in the middle of each run.

    python3 through_service.py --watertight PATH --node NODE_MODULES [--chromium PATH]

The page comes from another origin, with a key for the start and a watch token for the rest. The first run ends well; the second one's
agent fails, and the page says so in Korean.
"""

import argparse
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "service"))
from scripted import Service, free_port, request  # noqa: E402

KEY = "wt-browser-only-a-test-key-0123456789"
EXAMPLE = os.path.join(HERE, "..", "..", "examples", "momently")


class Writer:
    """The agent `draft` elsewhere: it takes its time, counts who asks, and is `well` or not. It fetches the photos that it is told of."""

    def __init__(self):
        self.calls, self.well, outer = [], True, self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.calls.append(asked)
                time.sleep(1.5)
                body = {"output": {"title": "바다", "text": "하루를 걸었다.", "language": "ko"}} if outer.well else {"detail": "the pen broke"}
                data = json.dumps(body).encode()
                try:
                    self.send_response(200 if outer.well else 500)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # whoever asked was killed

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def settings(page_port, writer):
    embedded = "".join(f'[agents.{name}]\nprovider = "embedded"\n' for name in ("photos", "style", "review", "meta"))
    return f"""[serve]
cors_origins = ["http://127.0.0.1:{page_port}"]
[keys.page]
sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"
tenant = "page"
[providers.elsewhere]
kind = "http"
base_url = "{writer.url}"
[agents.draft]
provider = "elsewhere"
path = "/draft"
retry = {{ attempts_max = 2, backoff = "100ms" }}
{embedded}"""


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--node", required=True, help="a node_modules that has playwright-core")
    options.add_argument("--chromium", default="/usr/bin/chromium")
    options = options.parse_args()
    writer, page_port = Writer(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(EXAMPLE, "workflow.toml"), encoding="utf-8") as file:
            workflow = file.read()
        open(os.path.join(folder, "workflow.toml"), "w", encoding="utf-8").write(workflow)
        open(os.path.join(folder, "watertight.toml"), "w", encoding="utf-8").write(settings(page_port, writer))
        service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        control = threading.Thread(target=restarts, args=(service, os.path.join(folder, "restart")), daemon=True)
        control.start()
        try:
            for well in (True, False):
                writer.well = well
                environment = {
                    **os.environ,
                    "BASE_URL": f"http://127.0.0.1:{service.port}",
                    "API_KEY": KEY,
                    "PAGE_PORT": str(page_port),
                    "RESTART": f"touch {folder}/restart; while [ -e {folder}/restart ]; do sleep 0.05; done",
                    "NODE_PATH": options.node,
                    "CHROMIUM": options.chromium,
                    "WELL": "1" if well else "",
                }
                subprocess.run(["node", os.path.join(HERE, "follow.mjs")], env=environment, check=True, timeout=150)
            check(service, writer)
        except BaseException:
            print(service.tail(), file=sys.stderr)
            raise
        finally:
            service.kill()


def restarts(service, wish):
    """Kills the service as nobody stops, and starts it again, whenever the file is there."""
    while True:
        if os.path.exists(wish):
            service.kill()
            time.sleep(0.5)
            service.start().wait_ready()
            os.remove(wish)
        time.sleep(0.05)


def check(service, writer):
    headers = {"authorization": f"Bearer {KEY}"}
    status, _, runs = request(service.port, "GET", "/v1/runs", headers=headers)
    assert status == 200, (status, runs)
    states = sorted(run["status"] for run in runs["data"])
    assert states == ["completed", "failed"], states
    status, answer_headers, _ = request(service.port, "OPTIONS", "/v1/runs", headers={
        "origin": "http://127.0.0.1:1", "access-control-request-method": "POST", "access-control-request-headers": "authorization"})
    assert answer_headers["access-control-allow-origin"] is None, answer_headers
    first = writer.calls[0]["input"]["photos"]
    assert len(first["photos"]) == 2 and all(photo["usable"] for photo in first["photos"]), first
    print(f"browser and service: {states}, the writer was asked {len(writer.calls)} times, no other origin is let in")


if __name__ == "__main__":
    main()

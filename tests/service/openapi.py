"""What `/openapi.json` promises, held against the running service by schemathesis: thousands of requests that fit the schema and that
break it, from a fixed seed. Every status must be described and every answer fit its schema, nothing invalid may be taken, no request may
be answered with a fault of ours, none without a key.

    python3 tests/service/openapi.py --watertight target/release/watertight --schemathesis venv/bin/schemathesis"""
import argparse, hashlib, os, subprocess, sys, tempfile

from scripted import Agents, Service
from tenants import WORKFLOW

KEY = "wt-only-a-test-key-of-olga-0123456789"
UPSTREAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients", "upstream.py")
# A schema cannot say what a workflow wants as its input, so what fits it may well be refused.
EXCLUDED = "positive_data_acceptance"


def settings(agents, upstream):
    return f"""[providers.scripted]
kind = "http"
base_url = "{agents}"
[agents.reader]
provider = "scripted"
path = "/reader"
[providers.upstream]
kind = "openai"
base_url = "{upstream}"
[agents.fast]
provider = "upstream"
model = "ok"
[keys.olga]
role = "operator"
sha256 = "{hashlib.sha256(KEY.encode()).hexdigest()}"
"""


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--schemathesis", required=True)
    options.add_argument("--examples", type=int, default=10, help="per operation, beside those that cover the schema")
    options.add_argument("--seed", type=int, default=1)
    options = options.parse_args()
    agents = Agents(slow_s=(0.001, 0.01))
    upstream = subprocess.Popen([sys.executable, UPSTREAM], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        url = upstream.stderr.readline().strip().removeprefix("listens on ")
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
            open(os.path.join(folder, "watertight.toml"), "w").write(settings(agents.url, url))
            service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
            command = [os.path.abspath(options.schemathesis), "run", f"http://127.0.0.1:{service.port}/openapi.json"]
            command += ["--header", f"Authorization: Bearer {KEY}", "--phases", "coverage,fuzzing", "--exclude-checks", EXCLUDED]
            command += ["--max-examples", str(options.examples), "--seed", str(options.seed), "--no-shrink", "--warnings", "off"]
            command += ["--request-timeout", "20", "--continue-on-failure"]
            try:
                tested = subprocess.run(command, stdin=subprocess.DEVNULL, cwd=folder)
                ended = service.terminate()
            finally:
                if service.process.poll() is None:
                    service.kill()
            log = open(service.log.name, encoding="utf-8", errors="replace").read()
    finally:
        upstream.kill()
        upstream.wait()
    if tested.returncode != 0 or ended != 0 or "panicked" in log:
        raise SystemExit(f"schemathesis: {tested.returncode}, the service: {ended}\n{log[-3000:]}")
    print("openapi.py: ok")


if __name__ == "__main__":
    main()

"""The official clients through a real `watertight serve` in front of the scripted upstream, or of a model server of this machine.

    python3 through_gateway.py --watertight PATH --python VENV/bin/python --node NODE_MODULES [--model-server BASE_URL]

Keys are on: the clients' own goes no further than the gateway. What cannot be seen by a client is counted at the upstream.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "service"))
from scripted import Service, request  # noqa: E402

# How often the gateway tries: `busy` once, so that its wait reaches the client.
TRIES = {"busy": 1, "broken": 2, "always": 4}
MODELS = ["ok", "tools", "busy", "far", "always", "broken", "bad", "final", "slow", "cut"]
KEY = "wt-clients-only-a-test-key-0123456789"


def agents():
    return "".join(
        f'[agents.{name}]\nprovider = "upstream"\nmodel = "{name}"\n'
        f'retry = {{ attempts_max = {TRIES.get(name, 3)}, backoff = "20ms", budget_min = 100 }}\n'
        "breaker = { consecutive_failures = \"off\", calls_min = 1000, window_calls = 1000 }\n"
        for name in MODELS
    )


def settings(url, models):
    return (
        f'[providers.upstream]\nkind = "openai"\nbase_url = "{url}"\nmodel = "none"\nslots = 64\n'
        "breaker = { consecutive_failures = \"off\", calls_min = 1000, window_calls = 1000 }\n"
        f'{models}[keys.team]\nkey_env = "CLIENT_KEY"\ntenant = "team"\n'
    )


def upstream():
    process = subprocess.Popen([sys.executable, os.path.join(HERE, "upstream.py")], stderr=subprocess.PIPE, text=True)
    return process, re.search(r"listens on (\S+)", process.stderr.readline())[1]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--python", default=sys.executable, help="a Python that has the client")
    options.add_argument("--node", help="a node_modules that has the client")
    options.add_argument("--model-server", help="base URL of a model server, instead of the scripted upstream")
    options = options.parse_args()
    os.environ["CLIENT_KEY"] = KEY
    process, url = (None, options.model_server) if options.model_server else upstream()
    models = '[agents.small]\nprovider = "upstream"\nmodel = "small"\n' if options.model_server else agents()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "watertight.toml"), "w", encoding="utf-8") as file:
            file.write(settings(url, models))
        service = Service(os.path.abspath(options.watertight), folder).start()
        try:
            service.wait_ready()
            known = {"BASE_URL": f"http://127.0.0.1:{service.port}/v1", "UPSTREAM_URL": url, "API_KEY": KEY, "GATEWAY": "1"}
            scripts = [[options.python, "real_model.py"]] if options.model_server else [[options.python, "openai_client.py"], ["node", "openai_client.mjs"]]
            for program, script in scripts:
                if program == "node" and not options.node:
                    continue
                environment = {**os.environ, **known, "NODE_PATH": options.node or ""}
                subprocess.run([program, os.path.join(HERE, script)], env=environment, check=True, timeout=300)
            for key, status in [(None, 401), ("wt-not-this-one", 401), (KEY, 200)]:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                got = request(service.port, "GET", "/v1/models", headers=headers)
                assert got[0] == status, got
        except BaseException:
            print(service.tail(), file=sys.stderr)
            raise
        finally:
            code = service.terminate()
            if process:
                process.kill()
        assert code == 0, f"serve ended with {code}: {service.tail()}"
        assert KEY not in service.tail(), "the key is in the log"


if __name__ == "__main__":
    main()

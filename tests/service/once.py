"""Kills `watertight serve` while a step with effects = "once" is in flight: after the restart nobody calls it again by itself, an operator
sees it among the dead letters, and one replay lets the run end. The agent sees its key twice in all.

    python3 tests/service/once.py --watertight target/release/watertight"""
import argparse, os, tempfile, time

from scripted import Agents, Service

WORKFLOW = """[workflow]
name = "pay"
deadline = "10m"
output = "steps.note.output"
[inputs]
sum = "json"
[[step]]
id = "charge"
agent = "charge"
in = { sum = "input.sum" }
effects = "once"
[[step]]
id = "note"
agent = "note"
in = { charged = "steps.charge.output.text" }
"""


def until(what, look, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"never: {what}")


def expect(what, is_so):
    if not is_so:
        raise SystemExit(f"not so: {what}")
    print(f"  {what}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options = options.parse_args()
    agents = Agents(slow_s=(3, 3))
    settings = f'[providers.scripted]\nkind = "http"\nbase_url = "{agents.url}"\n'
    settings += "".join(f'[agents.{name}]\nprovider = "scripted"\npath = "/{name}"\n' for name in ("charge", "note"))
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
        open(os.path.join(folder, "watertight.toml"), "w").write(settings)
        service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        try:
            play(service, agents)
        finally:
            service.kill()
    print("once.py: ok")


def play(service, agents):
    status, _, accepted = service.request("POST", "/v1/runs", {"workflow": "pay", "input": {"sum": 7}})
    expect("the run is accepted", status == 202)
    run = accepted["run_id"]
    until("the step is in flight", lambda: agents.calls)
    service.kill()
    service.start().wait_ready()
    letters = until("a dead letter", lambda: service.request("GET", "/v1/dead-letters")[2]["data"])
    letter = letters[0]
    expect("one letter, in doubt, of this run", (len(letters), letter["cause"], letter["run_id"]) == (1, "in_doubt", run))
    why = service.request("GET", f"/v1/runs/{run}/why")[2]
    expect(f"why says that it waits for an operator: {why}", "in_doubt" in str(why))
    time.sleep(3)
    expect("nobody called it again", len(agents.calls) == 1)
    service.kill()
    service.start().wait_ready()
    until("the letter is there after one more kill", lambda: len(service.request("GET", "/v1/dead-letters")[2]["data"]) == 1)
    path = f"/v1/dead-letters/{letter['id']}/replay"
    # Right after a start its run may not have looked yet.
    until("it is replayed", lambda: service.request("POST", path)[0] == 200)
    expect("a second replay finds nothing", service.request("POST", path)[0] in (404, 409))
    status, _, result = service.request("GET", f"/v1/runs/{run}/result?wait=30")
    expect(f"the run ends well: {status} {result}", status == 200 and result["status"] == "completed")
    keys = [call["key"] for call in agents.calls if call["agent"] == "charge"]
    expect("the agent saw its key twice in all", keys == [f"{run}/charge/-/0"] * 2)
    expect("no letter is left", service.request("GET", "/v1/dead-letters")[2]["data"] == [])


if __name__ == "__main__":
    main()

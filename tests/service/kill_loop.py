"""Kills `watertight serve` at random moments while runs are in flight, and holds it to its promises:
every accepted run ends, no finished step is paid twice, event ids have no gap, idempotency keys still answer, the journal is whole.

    python3 tests/service/kill_loop.py --watertight target/release/watertight [--kills 50] [--seed 1]"""
import argparse, os, random, sys, tempfile, threading, time, uuid

from scripted import Agents, Service, follow, integrity

WORKFLOW = """[workflow]
name = "chain"
deadline = "10m"
output = "steps.sign.output"
[inputs]
topics = "json"
[[step]]
id = "plan"
agent = "plan"
in = { topics = "input.topics" }
[[step]]
id = "write"
agent = "write"
in = { topic = "topic", plan = "steps.plan.output.text" }
map = { over = "input.topics", as = "topic", parallel = 3 }
[[step]]
id = "judge"
agent = "judge"
in = { written = "steps.write.output" }
[[step]]
id = "sign"
agent = "sign"
in = { judged = "steps.judge.output.text" }
"""


def settings(url):
    agents = "".join(f'[agents.{name}]\nprovider = "scripted"\npath = "/{name}"\nslots = 64\n' for name in ("plan", "write", "judge", "sign"))
    return f'[providers.scripted]\nkind = "http"\nbase_url = "{url}"\nslots = 64\n{agents}'


# A request that was sent before a kill is read by its agent at most so much later, in seconds.
READ_LATE_S = 0.2


class Watch(threading.Thread):
    """Follows one run over every restart and keeps all of its events with the moment at which they were seen."""

    def __init__(self, port, run_id):
        super().__init__(daemon=True)
        self.port, self.run_id, self.events, self.seen_at, self.faults = port, run_id, [], {}, []
        self.start()

    def run(self):
        while not (self.events and self.events[-1]["type"] == "run.finished"):
            after = self.events[-1]["id"] if self.events else 0
            try:
                for event in follow(self.port, self.run_id, after):
                    expected = len(self.events) + 1
                    if event["id"] != expected:
                        self.faults.append(f"event {event['id']} where {expected} was due")
                        return
                    self.events.append(event)
                    if event["type"] == "step.finished" and event.get("step") != "write" or event["data"].get("index") is not None and event["type"] == "step.finished":
                        self.seen_at[key_of(self.run_id, event)] = time.time()
            except OSError:
                time.sleep(0.05)


def key_of(run_id, event):
    index = event["data"].get("index")
    return f"{run_id}/{event['step']}/{'-' if index is None else index}/{event['data'].get('iteration', 0)}"


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--journal", default=".watertight/journal.db", help="where the journal is, below the project's folder")
    options = options.parse_args()
    chance, agents = random.Random(options.seed), Agents(seed=options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
        open(os.path.join(folder, "watertight.toml"), "w").write(settings(agents.url))
        service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        runs, lock, stop, kills, slowest_start = {}, threading.Lock(), threading.Event(), [], 0.0

        def submit():
            while not stop.is_set():
                with lock:
                    live = sum(1 for watch in list(runs.values()) if watch[1].is_alive())
                if live >= 12:
                    time.sleep(0.02)
                    continue
                key, body = str(uuid.uuid4()), {"workflow": "chain", "input": {"topics": ["a", "b", "c", "d"]}}
                while True:
                    try:
                        status, _, answer = service.request("POST", "/v1/runs", body, {"idempotency-key": key})
                    except OSError:
                        time.sleep(0.03)
                        continue
                    if status == 202:
                        break
                    if status != 503:
                        sys.exit(f"POST /v1/runs: {status} {answer}")
                    time.sleep(0.1)
                with lock:
                    runs[key] = (body, Watch(service.port, answer["run_id"]))

        submitters = [threading.Thread(target=submit, daemon=True) for _ in range(4)]
        for thread in submitters:
            thread.start()
        for number in range(options.kills):
            time.sleep(chance.choice([chance.uniform(0.0, 0.1), chance.uniform(0.1, 0.9)]))
            service.kill()
            kills.append(time.time())
            said = integrity(os.path.join(folder, options.journal))
            assert said == "ok", f"after kill {number + 1}: {said}"
            began = time.time()
            service.start().wait_ready()
            slowest_start = max(slowest_start, time.time() - began)
        stop.set()
        for thread in submitters:
            thread.join(60)
        faults, repeated = [], 0
        for key, (body, watch) in runs.items():
            watch.join(120)
            if watch.is_alive():
                _, _, why = service.request("GET", f"/v1/runs/{watch.run_id}/why")
                faults.append(f"{watch.run_id} did not end: {why}")
                continue
            faults += [f"{watch.run_id}: {fault}" for fault in watch.faults]
            status, _, record = service.request("GET", f"/v1/runs/{watch.run_id}")
            if status != 200 or record["status"] != "completed":
                faults.append(f"{watch.run_id}: {status} {record}")
            status, headers, again = service.request("POST", "/v1/runs", body, {"idempotency-key": key})
            if (again.get("run_id"), headers["idempotency-replayed"]) != (watch.run_id, "true"):
                faults.append(f"{watch.run_id}: its key answers {status} {again}")
            finished = [key_of(watch.run_id, event) for event in watch.events if event["type"] == "step.finished"]
            if len(finished) != len(set(finished)):
                faults.append(f"{watch.run_id}: a step finished twice")
        other = {"workflow": "chain", "input": {"topics": ["other"]}}
        status, _, answer = service.request("POST", "/v1/runs", other, {"idempotency-key": next(iter(runs))})
        if status != 422:
            faults.append(f"another body under a used key: {status} {answer}")
        seen_at = {key: at for _, watch in runs.values() for key, at in watch.seen_at.items()}
        by_key = {}
        for call in agents.calls:
            by_key.setdefault(call["key"], []).append(call)
        for key, calls in by_key.items():
            for earlier, later in zip(calls, calls[1:]):
                repeated += 1
                if later["at"] > seen_at.get(key, float("inf")):
                    faults.append(f"{key} was paid again after it was told as finished")
                # What the killed process had sent may be read here a moment later: the agents are as busy as everybody.
                if not any(earlier["at"] - READ_LATE_S <= kill <= later["at"] for kill in kills):
                    since = earlier["at"] - max([kill for kill in kills if kill <= earlier["at"]], default=0)
                    faults.append(f"{key} was paid again without a kill between, the first time {since:.3f} s after one")
        said = integrity(os.path.join(folder, options.journal))
        service.terminate()
        for fault in faults[:20]:
            print("FAULT", fault[:600])
        print(f"{len(kills)} kills, {len(runs)} runs, {len(agents.calls)} calls, {repeated} calls in flight at a kill made again, "
              f"slowest restart {slowest_start:.2f} s, integrity {said}, {len(faults)} faults")
        sys.exit(1 if faults or said != "ok" else 0)


if __name__ == "__main__":
    main()

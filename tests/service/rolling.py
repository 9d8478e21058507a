"""Replaces a running `watertight serve` again and again under load: each new one takes the listening socket over from the old one.
Every client is answered, no run is lost, and followers see every event once.

    python3 tests/service/rolling.py --watertight target/release/watertight [--rounds 6]"""
import argparse, collections, os, sys, tempfile, threading, time, uuid

from kill_loop import WORKFLOW, Watch, settings
from scripted import Agents, Service, request


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--rounds", type=int, default=6)
    options = options.parse_args()
    agents, answers, faults, runs, lock, stop = Agents(), collections.Counter(), [], {}, threading.Lock(), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
        open(os.path.join(folder, "watertight.toml"), "w").write(settings(agents.url))
        current = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        port = current.port

        def client(kind):
            while not stop.is_set():
                try:
                    if kind == "run":
                        body = {"workflow": "chain", "input": {"topics": ["a", "b"]}}
                        status, _, answer = request(port, "POST", "/v1/runs", body, {"idempotency-key": str(uuid.uuid4())})
                        if status == 202:
                            with lock:
                                runs[answer["run_id"]] = Watch(port, answer["run_id"])
                        time.sleep(0.1)
                    else:
                        status, _, answer = request(port, "POST", "/v1/agents/plan/call", {"input": {"topics": ["x"]}})
                    if status not in (200, 202):
                        faults.append(f"{kind}: {status} {answer}")
                    answers[(kind, status)] += 1
                except OSError as error:
                    faults.append(f"{kind}: no answer: {error}")

        clients = [threading.Thread(target=client, args=(kind,), daemon=True) for kind in ["call"] * 6 + ["run"] * 2]
        for thread in clients:
            thread.start()
        for _ in range(options.rounds):
            time.sleep(1.0)
            old, current = current, Service(current.program, folder, port).start()
            code = old.process.wait(60)
            if code != 0:
                faults.append(f"the old one ended with {code}: {old.tail()}")
            current.wait_ready()
        stop.set()
        for thread in clients:
            thread.join(60)
        for run_id, watch in runs.items():
            watch.join(60)
            faults += [f"{run_id}: {fault}" for fault in watch.faults]
            status, _, record = request(port, "GET", f"/v1/runs/{run_id}")
            if watch.is_alive() or status != 200 or record["status"] != "completed":
                faults.append(f"{run_id}: {status} {record}")
        if current.terminate() != 0:
            faults.append(f"the last one did not stop well: {current.tail()}")
        for fault in faults[:20]:
            print("FAULT", fault[:600])
        print(f"{options.rounds} replacements, {dict(answers)}, {len(runs)} runs, {len(faults)} faults")
        sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()

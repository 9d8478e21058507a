"""Two tenants at one `watertight serve`: nothing of one is there for the other, and what is not one's own answers like what is not at all.

    python3 tests/service/tenants.py --watertight target/release/watertight"""
import argparse, hashlib, json, os, re, sys, tempfile, time

from scripted import Agents, Service, follow

WORKFLOW = """[workflow]
name = "one"
output = "steps.a.output"
[inputs]
text = "text"
photos = "files?"
[[step]]
id = "a"
agent = "reader"
in = { text = "input.text", photos = "input.photos" }
"""
KEYS = {name: f"wt-only-a-test-key-of-{name}-0123456789" for name in ("ann", "bob", "app", "olga")}
MISSING = "0" * 24


def settings(url):
    def key(name, more):
        return f'[keys.{name}]\nsha256 = "{hashlib.sha256(KEYS[name].encode()).hexdigest()}"\n{more}\n'

    keys = key("ann", 'tenant = "acme"') + key("bob", 'tenant = "brick"') + key("app", "may_act_for = true") + key("olga", 'role = "operator"')
    return f'[providers.scripted]\nkind = "http"\nbase_url = "{url}"\n[agents.reader]\nprovider = "scripted"\npath = "/reader"\n{keys}'


class Tenants:
    def __init__(self, service):
        self.service, self.faults, self.asked = service, [], 0

    def ask(self, who, method, path, body=None, **headers):
        self.asked += 1
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.service.request(method, path, body, {"authorization": f"Bearer {KEYS.get(who, who)}", **named})

    def must(self, what, condition, got):
        if not condition:
            self.faults.append(f"{what}: {got}")

    def run(self, who, **headers):
        status, _, run = self.ask(who, "POST", "/v1/runs", {"workflow": "one", "input": {"text": "x"}}, **headers)
        assert status == 202, (status, run)
        status, _, run = self.ask(who, "GET", f"/v1/runs/{run['run_id']}/result?wait=20", **headers)
        assert (status, run["status"]) == (200, "completed"), (status, run)
        return run["run_id"]

    def file(self, who, text=b"a secret of acme"):
        status, _, file = self.ask(who, "POST", "/v1/files", text, content_type="application/octet-stream")
        assert status == 201, (status, file)
        return file["file_id"]


def shape(answer, ident):
    """An answer without what differs from one request to the next."""
    status, headers, body = answer
    told = {name.lower(): value for name, value in headers.items() if name.lower() not in ("date", "traceparent", "x-watertight-call-id")}
    text = re.sub(r'"trace_id":\s*"[0-9a-f]+"', "", json.dumps(body) if isinstance(body, dict) else repr(body)).replace(ident, "ID")
    told.pop("content-length", None)
    # Whether the connection stays says when the body was read, not what was found.
    told.pop("connection", None)
    return status, sorted(told.items()), text


def ways(run, file):
    """Everything that names a run or a file by its id."""
    start = {"workflow": "one", "input": {"text": "x", "photos": [{"file_id": file}]}}
    return [
        ("GET", f"/v1/runs/{run}", None),
        ("GET", f"/v1/runs/{run}/events", None),
        ("GET", f"/v1/runs/{run}/events?after=1", None),
        ("GET", f"/v1/runs/{run}/result", None),
        ("GET", f"/v1/runs/{run}/result?wait=1", None),
        ("GET", f"/v1/runs/{run}/why", None),
        ("GET", f"/v1/runs/{run}/captures", None),
        ("POST", f"/v1/runs/{run}/cancel", {}),
        ("POST", f"/v1/runs/{run}/repair", {}),
        ("POST", f"/v1/runs/{run}/rerun", {"from": "a"}),
        ("POST", f"/v1/runs/{run}/watch-token", {}),
        ("DELETE", f"/v1/runs/{run}", None),
        ("GET", f"/v1/files/{file}", None),
        ("DELETE", f"/v1/files/{file}", None),
        ("POST", "/v1/runs", start),
    ]


def what_is_anothers(tenants):
    run, file = tenants.run("ann"), tenants.file("ann")
    for (method, path, body), (_, nothing, void) in zip(ways(run, file), ways(MISSING, "f" * len(file))):
        got, none = tenants.ask("bob", method, path, body), tenants.ask("bob", method, nothing, void)
        name = f"{method} {path.replace(run, 'RUN').replace(file, 'FILE')} of another tenant"
        tenants.must(name, got[0] == 404, (got[0], got[2]))
        ours, theirs = shape(got, run if run in json.dumps(str(got[2])) else file), shape(none, MISSING if MISSING in str(none[2]) else "f" * len(file))
        tenants.must(f"{name}: told apart from one that is not there", ours == theirs, (ours, theirs))
    tenants.must("the run is still there", tenants.ask("ann", "GET", f"/v1/runs/{run}")[0] == 200, run)
    tenants.must("the file is still there", tenants.ask("ann", "GET", f"/v1/files/{file}")[2] == b"a secret of acme", file)
    return run, file


def timing(tenants, run):
    """Whether something exists must not be told by how long a refusal takes: medians within a factor, both far below a millisecond's noise."""
    def median(path):
        taken = []
        for _ in range(60):
            began = time.perf_counter()
            tenants.ask("bob", "GET", path)
            taken.append(time.perf_counter() - began)
        return sorted(taken)[30]

    median(f"/v1/runs/{run}")
    theirs, none = median(f"/v1/runs/{run}"), median(f"/v1/runs/{MISSING}")
    print(f"a refusal takes {theirs * 1000:.2f} ms for another's run, {none * 1000:.2f} ms for none")
    tenants.must("timing", abs(theirs - none) < max(0.002, 0.5 * none), (theirs, none))


def lists(tenants, run):
    for who, count in [("bob", 0), ("ann", 1), ("olga", 1)]:
        for query in ("", "?status=completed", "?tenant=acme", "?workflow=one&limit=5"):
            status, _, body = tenants.ask(who, "GET", f"/v1/runs{query}")
            if status in (400, 403, 404) and "tenant" in query and who != "olga":
                continue  # no filter of theirs
            found = [item["run_id"] for item in body["data"]]
            tenants.must(f"{who} lists {query or 'all'}", (status, len(found)) == (200, count) and (not count or found == [run]), (status, body))
    status, _, usage = tenants.ask("bob", "GET", "/v1/usage")
    tenants.must("usage of one who did nothing", status == 403 or (status == 200 and '"acme"' not in json.dumps(usage) and not usage.get("data")), (status, usage))
    _, _, agents = tenants.ask("bob", "GET", "/v1/agents")
    tenants.must("the list of agents names no tenant", "acme" not in json.dumps(agents), agents)
    _, headers, page = tenants.ask("bob", "GET", "/metrics")
    tenants.must("metrics name no tenant", b"acme" not in (page if isinstance(page, bytes) else json.dumps(page).encode()), page)


def acts(tenants):
    for method, path, body in [
        ("POST", "/v1/agents/reader/breaker", {"action": "force_open", "reason": "x"}),
        ("POST", "/v1/agents/reader/drain", {}),
        ("GET", "/v1/dead-letters", None),
        ("DELETE", "/v1/tenants/acme/data", None),
    ]:
        status, _, answer = tenants.ask("bob", method, path, body)
        tenants.must(f"{method} {path} by a caller", status in (403, 404) or (status == 200 and answer.get("data") == []), (status, answer))
    for name, value in [("x_watertight_tenant", "acme"), ("x_watertight_user", "someone")]:
        status, _, answer = tenants.ask("bob", "GET", "/v1/runs", **{name: value})
        tenants.must(f"{name} without may_act_for", status == 403, (status, answer))
        body = {"workflow": "one", "input": {"text": "x"}, name.removeprefix("x_watertight_"): value}
        status, _, answer = tenants.ask("bob", "POST", "/v1/runs", body)
        tenants.must(f"{name} in a body without may_act_for", status == 403, (status, answer))
    status, _, answer = tenants.ask("wt-no-such-key", "GET", "/v1/runs")
    tenants.must("an unknown key", status == 401, (status, answer))


def for_others(tenants, run):
    """A key that acts for others sees, per request, what the named tenant sees; without a name, nothing of theirs."""
    for headers, status in [({"x_watertight_tenant": "acme"}, 200), ({"x_watertight_tenant": "brick"}, 404), ({}, 404)]:
        got = tenants.ask("app", "GET", f"/v1/runs/{run}", **headers)
        tenants.must(f"app for {headers}", got[0] == status, got)
    file = tenants.file("ann", b"another of acme's")
    body = {"workflow": "one", "tenant": "acme", "input": {"text": "x", "photos": [{"file_id": file}]}}
    status, _, answer = tenants.ask("app", "POST", "/v1/runs", body)
    tenants.must("a body's tenant may use that tenant's files", status == 202, (status, answer))
    status, _, answer = tenants.ask("app", "POST", "/v1/runs", {**body, "tenant": "brick"})
    tenants.must("and no other's", status == 404, (status, answer))
    status, _, answer = tenants.ask("olga", "POST", "/v1/runs", {"workflow": "one", "input": body["input"]})
    tenants.must("an operator's run is nobody's, and names nobody's files", status == 404, (status, answer))
    own = tenants.run("app", x_watertight_tenant="brick")
    tenants.must("bob sees what was run for him", tenants.ask("bob", "GET", f"/v1/runs/{own}")[0] == 200, own)


def tokens(tenants, run):
    other = tenants.run("ann")
    status, _, token = tenants.ask("ann", "POST", f"/v1/runs/{run}/watch-token", {})
    assert status == 200, token
    good = token["token"]
    tenants.must("a token reads its run's events", len(list(follow(tenants.service.port, run, headers={"authorization": f"Bearer {good}"}))) > 2, run)
    for method, path, status in [
        ("GET", f"/v1/runs/{run}/result", 200),
        ("GET", f"/v1/runs/{run}/events?token={good}", 200),
        ("GET", f"/v1/runs/{other}/result", 401),
        ("GET", f"/v1/runs/{other}/events", 401),
        ("GET", f"/v1/runs/{other}/events?token={good}", 401),
        ("GET", f"/v1/runs/{run}", 401),
        ("GET", f"/v1/runs/{run}/why", 401),
        ("POST", f"/v1/runs/{run}/cancel", 401),
        ("POST", f"/v1/runs/{run}/watch-token", 401),
        ("DELETE", f"/v1/runs/{run}", 401),
        ("GET", "/v1/runs", 401),
    ]:
        got = tenants.ask(good, method, path)
        tenants.must(f"{method} {path} with a token", got[0] == status, (got[0], got[2]))


def keys_are_no_secret_told(tenants, folder):
    said = tenants.service.tail()
    for name, key in KEYS.items():
        tenants.must(f"the key of {name} in the log", key not in said, said)
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".db", ".db-wal", "signing.key")):
                data = open(os.path.join(place, name), "rb").read()
                tenants.must(f"a key in {name}", not any(key.encode() in data for key in KEYS.values()), name)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options = options.parse_args()
    agents = Agents(slow_s=(0.0, 0.01))
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
        open(os.path.join(folder, "watertight.toml"), "w").write(settings(agents.url))
        service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        tenants = Tenants(service)
        run, _ = what_is_anothers(tenants)
        lists(tenants, run)
        timing(tenants, run)
        acts(tenants)
        for_others(tenants, run)
        tokens(tenants, run)
        keys_are_no_secret_told(tenants, folder)
        code = service.terminate()
        tenants.must("the service stops well", code == 0, (code, service.tail()))
    for fault in tenants.faults:
        print("FAULT", fault)
    print(f"{tenants.asked} requests of two tenants, {len(tenants.faults)} faults")
    sys.exit(1 if tenants.faults else 0)


if __name__ == "__main__":
    main()

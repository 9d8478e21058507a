"""A real cold start, paid once: callers of a real `watertight serve` in front of a llama.cpp server of this machine that lets its model go
when it was idle for a while. Standard library only, loopback only.

    python3 cold_start.py --watertight PATH --model-server BASE_URL --idle SECONDS

The model server must have been started with that idle time and without a key.
"""

import argparse, http.client, json, os, re, sys, tempfile, threading, time, urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "service"))
from scripted import Service  # noqa: E402

CALLERS = 8
BODY = {"input": {"text": "Say hello."}}


def settings(url, idle):
    return (
        f'[providers.local]\nkind = "openai"\nflavor = "llama_cpp"\nbase_url = "{url}"\nmodel = "local"\nslots = {CALLERS}\n'
        f'keeps_warm = "{idle}s"\nbreaker = {{ consecutive_failures = 1 }}\n'
        # Any failure that is charged to anybody would open its breaker at once.
        '[agents.one]\nprovider = "local"\nprompt = "prompt.md"\nmax_output_tokens = 8\n'
        'breaker = { consecutive_failures = 1 }\nslots = 16\nretry = { attempts_max = 1 }\n'
        '[agents.two]\nprovider = "local"\nprompt = "prompt.md"\nmax_output_tokens = 8\n'
        'breaker = { consecutive_failures = 1 }\nslots = 16\nretry = { attempts_max = 1 }\n'
    )


def props(url):
    """What the model server says of itself, which wakes nobody."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=20)
    connection.request("GET", "/props")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def asleep(url):
    return props(url).get("is_sleeping") is True


def warm_ups(service):
    """How many warm-ups ended, by result."""
    page = service.request("GET", "/metrics")[2].decode()
    found = re.findall(r'^watertight_warm_ups_total\{([^}]*)\} (\d+)', page, re.M)
    counts = {}
    for labels, count in found:
        result = re.search(r'result="([^"]*)"', labels)[1]
        counts[result] = counts.get(result, 0) + int(count)
    return counts


def transitions(service):
    page = service.request("GET", "/metrics")[2].decode()
    return sum(int(count) for count in re.findall(r"^watertight_breaker_transitions_total\{[^}]*\} (\d+)", page, re.M))


def ask(service, agent, answers, headers=None):
    began = time.monotonic()
    status, told, body = service.request("POST", f"/v1/agents/{agent}/call", BODY, headers, timeout=240)
    answers.append((status, told, body, time.monotonic() - began))


def leave(service):
    """Asks, and is gone before there is an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    connection.request("POST", "/v1/agents/one/call", json.dumps(BODY), {"content-type": "application/json"})
    time.sleep(0.02)
    connection.close()


def wait_asleep(url, seconds):
    until = time.monotonic() + seconds
    while not asleep(url):
        assert time.monotonic() < until, f"the model server never went to sleep: {props(url)}"
        time.sleep(0.2)


def crowd(service, url, idle):
    """Callers that come at once to a model that is not there: the first one leaves, one warm-up is made, and everybody who comes again is
    answered."""
    wait_asleep(url, idle + 60)
    # The service counts the same idle time from the last answer it saw.
    time.sleep(idle + 0.5)
    before, opened, began = warm_ups(service), transitions(service), time.monotonic()
    leave(service)
    answers = []
    callers = [threading.Thread(target=ask, args=(service, agent, answers)) for agent in ["one", "two"] * (CALLERS // 2)]
    [caller.start() for caller in callers]
    [caller.join() for caller in callers]
    sent_away = [body for status, _, body, _ in answers if status == 503]
    for status, headers, body, _ in answers:
        assert status in (200, 503), (status, body)
        if status == 503:
            error = body["error"]
            assert error["error_code"] in ("AGENT_WARMING", "AGENT_BULKHEAD_FULL"), body
            assert error["retryable"] and error["retry_after"] >= 1 and int(headers["retry-after"]) >= 1, body
    until = time.monotonic() + 240
    while sum(warm_ups(service).values()) == sum(before.values()):
        assert time.monotonic() < until, "no warm-up ever ended"
        time.sleep(0.02)
    loaded_s = time.monotonic() - began
    again = []
    ask(service, "two", again)
    assert again[0][0] == 200, again
    grown = {result: count - before.get(result, 0) for result, count in warm_ups(service).items() if count != before.get(result, 0)}
    assert grown in ({"loaded": 1}, {"was_loaded": 1}), f"one warm-up, and one only: {grown}"
    assert transitions(service) == opened, "a breaker took the load for an illness"
    assert not asleep(url)
    print(f"ok cold: {len(answers)} callers, {len(sent_away)} of them sent away and told when to come back, one warm-up ({grown}) in {loaded_s:.2f} s")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--model-server", required=True, help="its base URL, ending in /v1")
    options.add_argument("--idle", type=int, required=True, help="after so many seconds it lets its model go")
    options = options.parse_args()
    url, idle = options.model_server, options.idle
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "watertight.toml"), "w", encoding="utf-8") as file:
            file.write(settings(url, idle))
        with open(os.path.join(folder, "prompt.md"), "w", encoding="utf-8") as file:
            file.write("Answer in three words.\n")
        service = Service(os.path.abspath(options.watertight), folder).start()
        try:
            service.wait_ready()
            answers = []
            for _ in range(2):
                ask(service, "one", answers)
            assert all(answer[0] == 200 for answer in answers), answers
            print(f"ok warm: {answers[1][3]:.2f} s an answer")
            for _ in range(2):
                crowd(service, url, idle)
        except BaseException:
            print(service.tail(), file=sys.stderr)
            raise
        finally:
            code = service.terminate()
        assert code == 0, f"serve ended with {code}: {service.tail()}"


if __name__ == "__main__":
    main()

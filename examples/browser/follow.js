// Starts a run with photos and follows it, also over a restart of the service: no event is lost and none is seen twice.
const at = (id) => document.getElementById(id);
const run = { last: 0, over: false }; // the last event that was shown, and whether it was the run's last
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const said = { "step.started": "시작", "step.retried": "다시 시도", "step.refused": "대기", "step.degraded": "대체", "step.skipped": "건너뜀", "step.finished": "완료" };

// Asks until there is an answer: a service that starts anew or is full is asked again, for a minute at most.
async function ask(url, options = {}, tries = 60) {
  const answer = await fetch(url, options).catch(() => null);
  const body = (await answer?.json().catch(() => null)) ?? {};
  if (answer?.ok) return body;
  const isPassing = !answer || ((answer.status === 429 || answer.status >= 500) && body.error?.retryable !== false);
  if (isPassing && tries > 1) return pause(1000).then(() => ask(url, options, tries - 1));
  throw Object.assign(new Error(body.error?.user_message ?? `HTTP ${answer?.status}`), { told: true });
}

function show({ id, type, step, data }) {
  const line = `${step}: ${data?.status === "failed" ? "실패" : said[type]}`;
  if (step && said[type]) at("steps").appendChild(document.createElement("li")).textContent = line;
  at("problem").textContent = data?.error?.user_message ?? data?.user_message ?? at("problem").textContent;
  return (Object.assign(at("status"), { textContent: type === "run.finished" ? "끝났습니다." : `진행 중입니다. (${id})` }).dataset.last = id);
}

// Shows the events after the last one. A stream that is cut leaves `run` where it was: the next call goes on there. A token is good for 15 minutes, so each call has its own.
async function read(url, headers) {
  const answer = await fetch(url, { headers: { ...headers, "last-event-id": `${run.last}` } });
  if (!answer.ok) throw Object.assign(new Error(`HTTP ${answer.status}`), { told: answer.status < 500 && answer.status !== 429 });
  run.over = answer.status === 204;
  let text = "";
  for await (const piece of (answer.body ?? new Blob().stream()).pipeThrough(new TextDecoderStream())) {
    const frames = (text + piece).split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const event = JSON.parse(frame.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n") || "{}");
      if (event.id > run.last) [run.last, run.over] = [show(event), event.type === "run.finished"];
    }
  }
}

at("form").addEventListener("submit", async (submit) => {
  submit.preventDefault();
  const { base, key, workflow, notes, photos } = submit.target.elements;
  const body = new FormData();
  const parts = Object.entries({ workflow: workflow.value, input: JSON.stringify({ notes: notes.value }) });
  for (const [name, value] of [...parts, ...Array.from(photos.files, (photo) => ["photos", photo])]) body.append(name, value);
  [run.last, run.over, at("work").hidden, at("post").hidden, at("problem").textContent] = [0, false, false, true, ""];
  ["steps", "status"].forEach((id) => at(id).replaceChildren()), at("bar").removeAttribute("value");
  try {
    const [owner, once] = [key.value ? { authorization: `Bearer ${key.value}` } : {}, { "idempotency-key": crypto.randomUUID() }];
    const url = `${base.value}/v1/runs/${(await ask(`${base.value}/v1/runs`, { method: "POST", body, headers: { ...owner, ...once } })).run_id}`;
    const token = async () => ({ authorization: `Bearer ${(await ask(`${url}/watch-token`, { method: "POST", headers: owner })).token}` });
    while (!run.over) {
      await read(`${url}/events`, await token()).catch((error) => error.told && Promise.reject(error));
      if (!run.over) await pause(500);
    }
    const { output, error } = await ask(`${url}/result?wait=30`, { headers: await token() });
    [at("bar").value, at("post").hidden, at("post").textContent] = [1, !output, output?.markdown ?? ""];
    at("problem").textContent = error?.user_message ?? at("problem").textContent;
  } catch (error) { at("problem").textContent = error.message; }
});

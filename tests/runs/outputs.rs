//! Outputs of live runs are held within bounds: a full room takes no run in, those that are there end one after the other.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Map, json};
use watertight::{
    model::{
        envelope::ErrorCode,
        reply::{AttemptFailure, Reply},
        run::{RunStatus, StepStatus},
    },
    runtime::{
        call::CallContext,
        engine::Runtime,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
        run_handle::{RunHandle, RunRequest},
    },
    workflow::{checked::Workflow, plan::why::Why},
};

use crate::{
    kit::{Answer, Scripted, builder, pass, provider},
    support::{alone, chain, end, s, start, start_with, whole, workflow},
};

/// Answers with a text of so many bytes, and knows whose calls are under way.
struct Large {
    bytes: usize,
    inner: Arc<Scripted>,
    under_way: Mutex<Vec<String>>,
    most_runs: Mutex<usize>,
}

impl Large {
    fn of(bytes: usize) -> Arc<Self> {
        let inner = Scripted::always(Answer::Good.after(s(1)));
        Arc::new(Self { bytes, inner, under_way: Mutex::default(), most_runs: Mutex::default() })
    }

    fn most_runs(&self) -> usize {
        *self.most_runs.lock().unwrap()
    }
}

impl Backend for Large {
    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            let run = request.run_id.clone().unwrap();
            {
                let mut under_way = self.under_way.lock().unwrap();
                under_way.push(run.clone());
                let runs = under_way.iter().collect::<BTreeSet<_>>().len();
                let mut most = self.most_runs.lock().unwrap();
                *most = runs.max(*most);
            }
            let reply = self.inner.attempt(request, progress).await;
            let mut under_way = self.under_way.lock().unwrap();
            let place = under_way.iter().position(|known| *known == run).unwrap();
            under_way.remove(place);
            Ok(Reply { output: json!("x".repeat(self.bytes)), ..reply? })
        })
    }
}

async fn runtime(bytes_max: u64, agents: &[(&str, &Arc<Large>)]) -> Runtime {
    let mut builder = builder().run_outputs_bytes_max(bytes_max);
    for (of, backend) in agents {
        let backend: Arc<dyn Backend> = Arc::clone(backend) as Arc<dyn Backend>;
        builder = builder.provider(provider(&format!("{of}-host"))).agent(alone(of, 100), backend);
    }
    builder.start().await.unwrap()
}

fn of_tenant(runtime: &Runtime, workflow: &Arc<Workflow>, tenant: &str) -> Result<RunHandle, ErrorCode> {
    let context = CallContext { tenant: Some(tenant.to_owned()), ..CallContext::default() };
    let request = RunRequest { workflow: workflow.clone(), input: Map::new(), deadline: None, context };
    runtime.start_run(request).map_err(|refused| refused.error_code)
}

#[tokio::test(start_paused = true)]
async fn runs_go_on_one_after_the_other_while_their_outputs_fill_the_room() {
    let (first, later) = (Large::of(60_000), Large::of(60_000));
    let runtime = runtime(1_000_000, &[("a", &first), ("b", &later), ("c", &later)]).await;
    let workflow = chain(&["a", "b", "c"]);
    let runs: Vec<_> = (0..20).map(|_| start(&runtime, &workflow)).collect();
    pass(Duration::from_millis(1_500)).await;
    assert_eq!(first.most_runs(), 20, "all begin while there is room");
    assert_eq!(later.most_runs(), 9, "as many as there is room for, and one more");
    assert_eq!(of_tenant(&runtime, &workflow, "t").unwrap_err(), ErrorCode::LoadShed, "none is taken in");
    let waiting =
        runs.iter().filter(|run| matches!(run.why(), Some(Why::Parked { reason, .. }) if reason == "run_outputs_full"));
    assert_eq!(waiting.count(), 11, "the others say why they wait");
    pass(Duration::from_millis(1_000)).await;
    assert_eq!(later.under_way.lock().unwrap().len(), 1, "one goes on while it is over full");
    for run in &runs {
        let record = end(run).await;
        assert_eq!(record.status, RunStatus::Completed);
        whole(run, &record);
    }
    assert!(of_tenant(&runtime, &workflow, "t").is_ok(), "what is over takes no room");
}

#[tokio::test(start_paused = true)]
async fn one_tenant_leaves_room_to_others() {
    let large = Large::of(60_000);
    let runtime = runtime(400_000, &[("a", &large)]).await;
    let two =
        workflow("", "[[step]]\nid = \"a\"\nagent = \"a\"\n[[step]]\nid = \"again\"\nagent = \"a\"\nneeds = [\"a\"]\n");
    let runs = [of_tenant(&runtime, &two, "flood").unwrap(), of_tenant(&runtime, &two, "flood").unwrap()];
    pass(Duration::from_millis(1_500)).await;
    assert_eq!(of_tenant(&runtime, &two, "flood").unwrap_err(), ErrorCode::LoadShed);
    let other = of_tenant(&runtime, &two, "other").unwrap();
    for run in runs.iter().chain([&other]) {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn one_run_fills_no_more_than_half() {
    let large = Large::of(60_000);
    let runtime = runtime(400_000, &[("a", &large)]).await;
    let items = "[inputs]\nitems = \"json\"\n[[step]]\nid = \"a\"\nagent = \"a\"\nin = { x = \"item\" }\n\
                 map = { over = \"input.items\", as = \"item\", parallel = 1 }";
    let items: Arc<Workflow> = workflow("", items);
    let run = start_with(&runtime, &items, json!({"items": (0..20).collect::<Vec<_>>()}), None);
    let record = end(&run).await;
    assert_eq!(record.status, RunStatus::Failed);
    let error = record.error.as_ref().unwrap();
    assert_eq!((error.error_code, error.retryable), (ErrorCode::QuotaSpent, false));
    assert!(error.message.contains("runs_outputs_bytes_max = 200000"), "{}", error.message);
    let good = record.steps.iter().filter(|step| step.index.is_some() && step.status == StepStatus::Succeeded);
    assert_eq!(good.count(), 4, "what was there when it was full");
    let small = start_with(&runtime, &items, json!({"items": [1]}), None);
    assert_eq!(end(&small).await.status, RunStatus::Completed, "and then there is room again");
}

//! A thousand runs at once.

use std::sync::Arc;

use watertight::model::run::RunStatus;

use crate::{
    kit::{Answer, settle},
    support::{answering, assert_called_once, assert_idle, chain, end, ms, start},
};

#[tokio::test(start_paused = true)]
async fn a_thousand_runs_end_well_and_always_say_what_they_wait_for() {
    let (runtime, backends) = answering(&["a", "b", "c", "d"], Answer::Good.after(ms(10))).await;
    let workflow = chain(&["a", "b", "c", "d"]);
    let runs: Vec<_> = (0..1_000).map(|_| start(&runtime, &workflow)).collect();
    assert!(runs.iter().all(|run| run.why().is_some()), "also before its start");
    let runs = Arc::new(runs);
    let watch = tokio::spawn({
        let runs = Arc::clone(&runs);
        async move {
            let mut looks = 0;
            loop {
                tokio::time::sleep(ms(23)).await;
                let mut live = 0;
                for run in runs.iter() {
                    // A run may end between the two looks, but not come back.
                    let (why, status) = (run.why(), run.status());
                    assert!(why.is_some() || status.is_some(), "{} waits for nothing", run.id());
                    live += usize::from(status.is_none());
                }
                looks += 1;
                if live == 0 {
                    return looks;
                }
            }
        }
    });
    for run in runs.iter() {
        assert_eq!(end(run).await.status, RunStatus::Completed);
    }
    assert!(watch.await.unwrap() > 10);
    assert_called_once(&backends);
    assert!(backends.iter().all(|backend| backend.count() == 1_000));
    settle().await;
    assert_idle(&runtime, &backends);
}

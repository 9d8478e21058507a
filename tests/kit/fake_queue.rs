//! A deferred queue in memory, with the rules of the port and none of its own, that outlives the runtimes of a test.

#![allow(dead_code, reason = "not every test program is told of ends")]

use std::sync::{Arc, Mutex};

use watertight::runtime::{
    deferred::{
        push::{Push, Pushed},
        store::{
            Again, DeferredCall, DeferredEntry, DeferredResult, DeferredStatus, DeferredStore, Delivery,
            DeliveryStatus, Due, Lease, PushDue, PushSettled, Put, QueueBounds, Settled, Taken, Ticket,
        },
        view::DeferredView,
    },
    journal::{JournalError, RunOwner},
    ports::BoxFuture,
};

struct Row {
    call: DeferredCall,
    entry: DeferredEntry,
    owner: Option<String>,
    lease_ms: u64,
    generation: u64,
    push_due_ms: Option<u64>,
}

/// The queue.
#[derive(Default)]
pub struct FakeQueue {
    rows: Mutex<Vec<Row>>,
}

impl FakeQueue {
    /// An empty one.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Everything in it, the oldest first.
    pub fn entries(&self) -> Vec<DeferredEntry> {
        self.rows.lock().unwrap().iter().map(|row| row.entry.clone()).collect()
    }

    /// What is asked, the oldest first.
    pub fn calls(&self) -> Vec<DeferredCall> {
        self.rows.lock().unwrap().iter().map(|row| row.call.clone()).collect()
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, Result<T, JournalError>> {
    Box::pin(async move { Ok(value) })
}

impl DeferredStore for FakeQueue {
    fn put(&self, call: DeferredCall, bounds: QueueBounds) -> BoxFuture<'_, Result<Put, JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let head = &call.head;
        let same = |row: &&Row| {
            let known = &row.call.head;
            (&known.owner.tenant, &known.agent, &known.idempotency_key)
                == (&head.owner.tenant, &head.agent, &head.idempotency_key)
        };
        if let Some(row) = rows.iter().find(same) {
            let known = &row.call.head;
            let ticket = Ticket { id: known.id.clone(), due_ms: row.entry.due_ms, expires_ms: known.expires_ms };
            return ready(if known.request_hash == head.request_hash { Put::Known(ticket) } else { Put::Conflict });
        }
        let waiting = rows.iter().filter(|row| row.entry.status == DeferredStatus::Waiting).count() as u64;
        if waiting >= bounds.entries_max {
            return ready(Put::Full { bound: "deferred" });
        }
        let entry = DeferredEntry {
            head: head.clone(),
            status: DeferredStatus::Waiting,
            attempts: 0,
            refusals: 0,
            due_ms: head.due_ms,
            leased: false,
            ended_ms: None,
            result: None,
            delivery: None,
        };
        rows.push(Row { call, entry, owner: None, lease_ms: 0, generation: 0, push_due_ms: None });
        ready(Put::New)
    }

    fn take_over(&self, owner: &str) -> BoxFuture<'_, Result<u64, JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let mut released = 0;
        for row in rows.iter_mut().filter(|row| row.owner.as_deref().is_some_and(|other| other != owner)) {
            row.owner = None;
            row.generation += 1;
            released += 1;
        }
        ready(released)
    }

    fn take_due(&self, lease: Lease) -> BoxFuture<'_, Result<Due, JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let mut due = Due::default();
        let mut held = lease.held.calls.clone();
        for row in rows.iter_mut().filter(|row| row.entry.status == DeferredStatus::Waiting) {
            let is_free = row.owner.is_none() || row.lease_ms <= lease.now_ms;
            if is_free && row.call.head.expires_ms <= lease.now_ms {
                row.entry.status = DeferredStatus::Expired;
                row.entry.ended_ms = Some(lease.now_ms);
                let error = Some(row.call.head.error.clone());
                row.entry.result = Some(DeferredResult { output: None, usage: None, target: None, error });
                row.push_due_ms = row.call.head.pushed.then_some(lease.now_ms);
                due.expired += 1;
                continue;
            }
            due.waiting += 1;
            let (agent, tenant) = (&row.call.head.agent, &row.call.head.owner.tenant);
            let of_agent = held.iter().filter(|(of, _)| of == agent).count();
            let of_tenant = held.iter().filter(|(_, of)| of == tenant).count();
            if lease.held.of_one_max > 0 && of_agent.max(of_tenant) >= lease.held.of_one_max {
                continue;
            }
            if is_free && row.entry.due_ms <= lease.now_ms && due.taken.len() < lease.count_max {
                held.push((agent.clone(), tenant.clone()));
                row.owner = Some(lease.owner.clone());
                row.lease_ms = lease.until_ms;
                row.generation += 1;
                due.taken.push(Taken {
                    call: row.call.clone(),
                    attempts: row.entry.attempts,
                    refusals: row.entry.refusals,
                    generation: row.generation,
                });
            } else if row.owner.as_deref() != Some(lease.owner.as_str()) {
                due.next_ms = Some(due.next_ms.map_or(row.entry.due_ms, |next| next.min(row.entry.due_ms)));
            }
        }
        ready(due)
    }

    fn settle(&self, id: &str, generation: u64, settled: Settled) -> BoxFuture<'_, Result<bool, JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let live = |row: &&mut Row| {
            row.call.head.id == id
                && row.generation == generation
                && row.owner.is_some()
                && row.entry.status == DeferredStatus::Waiting
        };
        let Some(row) = rows.iter_mut().find(live) else { return ready(false) };
        row.owner = None;
        match settled {
            Settled::Again { due_ms, why } => {
                row.entry.due_ms = due_ms;
                row.entry.attempts += u32::from(why == Again::Failed);
                row.entry.refusals += u32::from(why == Again::Refused);
            }
            Settled::Ended { status, sent, result, at_ms } => {
                row.entry.status = status;
                row.entry.attempts += sent;
                row.entry.ended_ms = Some(at_ms);
                row.entry.result = Some(*result);
                row.push_due_ms = row.call.head.pushed.then_some(at_ms);
            }
        }
        ready(true)
    }

    fn take_pushes(&self, lease: Lease) -> BoxFuture<'_, Result<(Vec<PushDue>, Option<u64>), JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let mut due = Vec::new();
        let mut next = None;
        for row in rows.iter_mut() {
            match row.push_due_ms {
                Some(at) if at <= lease.now_ms => {
                    row.push_due_ms = None;
                    row.generation += 1;
                    let attempts = row.entry.delivery.as_ref().map_or(0, |delivery| delivery.attempts);
                    due.push(PushDue { entry: row.entry.clone(), attempts, generation: row.generation });
                }
                Some(at) => next = Some(next.map_or(at, |known: u64| known.min(at))),
                None => {}
            }
        }
        ready((due, next))
    }

    fn settle_push(
        &self,
        id: &str,
        generation: u64,
        settled: PushSettled,
    ) -> BoxFuture<'_, Result<bool, JournalError>> {
        let mut rows = self.rows.lock().unwrap();
        let Some(row) = rows.iter_mut().find(|row| row.call.head.id == id && row.generation == generation) else {
            return ready(false);
        };
        let attempts = row.entry.delivery.as_ref().map_or(0, |delivery| delivery.attempts) + 1;
        row.push_due_ms = (settled.status == DeliveryStatus::Waiting).then_some(settled.due_ms);
        let PushSettled { status, http_status, error, at_ms, .. } = settled;
        row.entry.delivery = Some(Delivery { status, attempts, http_status, error, at_ms: Some(at_ms) });
        ready(true)
    }
}

/// Somebody who is told of ends, and takes them from the so-and-so-many-th try on.
pub struct FakePush {
    takes_from: u32,
    told: Mutex<Vec<(DeferredView, u32)>>,
}

impl FakePush {
    /// Takes it from the `takes_from`th try on.
    pub fn from(takes_from: u32) -> Arc<Self> {
        Arc::new(Self { takes_from, told: Mutex::default() })
    }

    /// What it was told, with the number of each try.
    pub fn told(&self) -> Vec<(DeferredView, u32)> {
        self.told.lock().unwrap().clone()
    }
}

impl Push for FakePush {
    fn is_for(&self, owner: &RunOwner) -> bool {
        owner.tenant.as_deref() != Some("quiet")
    }

    fn push<'a>(&'a self, entry: &'a DeferredView, attempt: u32) -> BoxFuture<'a, Pushed> {
        self.told.lock().unwrap().push((entry.clone(), attempt));
        let taken = attempt >= self.takes_from;
        Box::pin(async move {
            if taken {
                return Pushed::Taken { http_status: 204 };
            }
            Pushed::Failed { http_status: Some(503), error: "busy".to_owned(), may_help: true, retry_after: None }
        })
    }
}

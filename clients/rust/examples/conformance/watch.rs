//! The action `subscribe`.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use sessiond_client::{
    Client, Code, Error, SubscribeOptions, Subscription,
    v1::{Event, event::Body},
};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use crate::{
    Refused,
    content::sha256,
    print,
    steps::{Outcome, Step, number, outcome},
    support,
};

/// How often heartbeats and reconnects are looked at while no event comes.
const GLANCE: Duration = Duration::from_millis(20);

/// When to stop: the first that holds.
struct Until {
    count: Option<u64>,
    seq: Option<i64>,
    kind: Option<String>,
    heartbeats: Option<u64>,
    reconnects: Option<u64>,
    caught_up: bool,
}

impl Until {
    fn new(until: &Value) -> Result<Self, Refused> {
        Ok(Self {
            count: number(&until["count"], "count")?,
            seq: number(&until["seq"], "seq")?,
            kind: until["kind"].as_str().map(str::to_owned),
            heartbeats: number(&until["heartbeats"], "heartbeats")?,
            reconnects: number(&until["reconnects"], "reconnects")?,
            caught_up: until["caught_up"].as_bool().unwrap_or(false),
        })
    }

    fn holds(&self, tally: &Tally, events: &Subscription) -> bool {
        let seen = |kind: &String| tally.kinds.contains_key(kind.as_str());
        self.count.is_some_and(|count| tally.count >= count)
            || self.seq.is_some_and(|seq| tally.last_seq >= seq)
            || self.kind.as_ref().is_some_and(seen)
            || self.heartbeats.is_some_and(|number| events.heartbeats() >= number)
            || self.reconnects.is_some_and(|number| events.reconnects() >= number)
            || (self.caught_up && events.caught_up())
    }
}

/// What was seen so far.
struct Tally {
    count: u64,
    first: Option<i64>,
    last_seq: i64,
    from_start: bool,
    gaps: u64,
    repeats: u64,
    kinds: BTreeMap<&'static str, u64>,
    text_bytes: usize,
    text: Sha256,
    last: Option<Event>,
    events: Vec<Value>,
    keep: usize,
}

impl Tally {
    fn new(after_seq: i64, keep: usize) -> Self {
        Self {
            count: 0,
            first: None,
            last_seq: after_seq,
            from_start: after_seq == 0,
            gaps: 0,
            repeats: 0,
            kinds: BTreeMap::new(),
            text_bytes: 0,
            text: Sha256::new(),
            last: None,
            events: Vec::new(),
            keep,
        }
    }

    fn add(&mut self, event: Event) {
        if event.seq <= self.last_seq {
            self.repeats += 1;
        } else if event.seq != self.last_seq + 1 && !(self.first.is_none() && self.from_start) {
            self.gaps += 1;
        }
        self.count += 1;
        self.first.get_or_insert(event.seq);
        self.last_seq = event.seq;
        *self.kinds.entry(event.kind()).or_default() += 1;
        if let Some(Body::AssistantText(text)) = &event.body {
            self.text_bytes += text.delta.len();
            self.text.update(&text.delta);
        }
        if self.events.len() < self.keep {
            self.events.push(event_to_json(&event));
        }
        self.last = Some(event);
    }
}

fn event_to_json(event: &Event) -> Value {
    json!({
        "seq": event.seq.to_string(),
        "kind": event.kind(),
        "request_id": event.request_id,
        "ignorable": event.ignorable,
        "actor": event.actor,
        "body": support::body(event),
    })
}

/// The progress lines that are asked for.
struct Announcements<'a> {
    step: &'a str,
    counts: Vec<u64>,
    caught_up: bool,
}

impl<'a> Announcements<'a> {
    fn new(step: &'a Step) -> Result<Self, Refused> {
        let none = Vec::new();
        let wanted = step.get("announce").as_array().unwrap_or(&none);
        Ok(Self {
            step: step.required("id")?,
            counts: wanted.iter().filter_map(Value::as_u64).collect(),
            caught_up: wanted.iter().any(|item| item == "caught_up"),
        })
    }

    fn event(&self, count: u64) -> Result<(), Refused> {
        if !self.counts.contains(&count) {
            return Ok(());
        }
        print(&json!({"progress": {"step": self.step, "events": count}}))
    }

    fn glance(&mut self, events: &Subscription) -> Result<(), Refused> {
        if !self.caught_up || !events.caught_up() {
            return Ok(());
        }
        self.caught_up = false;
        print(&json!({"progress": {"step": self.step, "caught_up": true}}))
    }
}

fn options(step: &Step) -> Result<SubscribeOptions, Refused> {
    Ok(SubscribeOptions::new()
        .after_seq(step.number("after_seq", 0)?)
        .transcript_id(step.text("transcript_id"))
        .deadline(step.millis("deadline_ms", 60_000)?)
        .resume(step.get("resume").as_bool().unwrap_or(true))
        .watchdog(step.millis("watchdog_ms", 45_000)?))
}

/// How it ended: DONE, OK, or an error.
enum End {
    Done,
    Server,
    Failed(Error),
}

async fn follow(
    events: &mut Subscription,
    tally: &mut Tally,
    until: &Until,
    cancel_after: Option<u64>,
    announcements: &mut Announcements<'_>,
) -> Result<End, Refused> {
    loop {
        announcements.glance(events)?;
        if until.holds(tally, events) {
            return Ok(End::Done);
        }
        if cancel_after.is_some_and(|number| tally.count >= number) {
            events.cancel();
        }
        match timeout(GLANCE, events.next()).await {
            Err(_) => {}
            Ok(Ok(None)) => return Ok(End::Server),
            Ok(Err(error)) => return Ok(End::Failed(error)),
            Ok(Ok(Some(event))) => {
                tally.add(event);
                announcements.event(tally.count)?;
            }
        }
    }
}

pub async fn subscribe(client: &Client, step: &Step) -> Result<Outcome, Refused> {
    let after_seq = step.number("after_seq", 0)?;
    let until = Until::new(step.get("until"))?;
    let cancel_after = number(step.get("cancel_after"), "cancel_after")?;
    let mut announcements = Announcements::new(step)?;
    let mut tally = Tally::new(after_seq, step.number("keep", 0)?);
    let mut events = client.subscribe(step.required("session_id")?, options(step)?);
    let end = follow(&mut events, &mut tally, &until, cancel_after, &mut announcements).await?;
    Ok(report(&end, tally, &events))
}

fn report(end: &End, tally: Tally, events: &Subscription) -> Outcome {
    let mut result = outcome(json!({
        "count": tally.count,
        "last_seq": tally.last_seq.to_string(),
        "gaps": tally.gaps,
        "repeats": tally.repeats,
        "head_seq": events.head_seq().to_string(),
        "first_seq": events.first_seq().to_string(),
        "transcript_id": events.transcript_id(),
        "caught_up": events.caught_up(),
        "heartbeats": events.heartbeats(),
        "reconnects": events.reconnects(),
        "kinds": tally.kinds,
        "text_bytes": tally.text_bytes,
        "text_sha256": sha256(tally.text),
        "last": tally.last.as_ref().map_or_else(|| json!({}), event_to_json),
        "events": tally.events,
    }));
    if let Some(first) = tally.first {
        result.insert("first".into(), first.to_string().into());
    }
    let name = match end {
        End::Done => "DONE",
        End::Server => "OK",
        End::Failed(error) => support::code_name(error.code()),
    };
    result.insert("end".into(), name.into());
    if let End::Failed(error) = end
        && error.code() != Code::Cancelled
    {
        result.insert("error".into(), support::error_to_json(error));
    }
    result
}

use std::{collections::VecDeque, fmt, pin::Pin, time::Duration};

use futures_util::stream::{Stream, unfold};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    Client, Error,
    backoff::Backoff,
    v1::{Event, SubscribeRequest, SubscribeResponse},
};

const WATCHDOG: Duration = Duration::from_secs(45);
/// What only may be a cut is taken for one this often, without a response in between.
const MAX_PERHAPS_CUT: u32 = 10;

/// From where to follow a session, and for how long.
#[derive(Clone, Debug)]
#[must_use]
pub struct SubscribeOptions {
    after_seq: i64,
    transcript_id: String,
    deadline: Option<Duration>,
    resume: bool,
    watchdog: Duration,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self {
            after_seq: 0,
            transcript_id: String::new(),
            deadline: None,
            resume: true,
            watchdog: WATCHDOG,
        }
    }
}

impl SubscribeOptions {
    /// The whole transcript, then whatever comes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only events with a higher seq; 0, unless set, is all of them.
    pub fn after_seq(mut self, seq: i64) -> Self {
        self.after_seq = seq;
        self
    }

    /// The transcript that `after_seq` was taken from: another one fails with `TRANSCRIPT_CHANGED`.
    pub fn transcript_id(mut self, id: impl Into<String>) -> Self {
        self.transcript_id = id.into();
        self
    }

    /// How long to follow, over all connections together; for ever unless set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Whether to go on after a cut; yes unless set.
    pub fn resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// How long a silence counts as a cut; 45 s, three heartbeats, unless set.
    pub fn watchdog(mut self, silence: Duration) -> Self {
        self.watchdog = silence;
        self
    }
}

/// A session's events, in order, each once, over as many connections as it takes.
///
/// Dropping it cancels it, at the server too.
pub struct Subscription {
    client: Client,
    session_id: String,
    options: SubscribeOptions,
    end: Option<Instant>,
    position: Position,
    link: Link,
    ready: VecDeque<Event>,
    backoff: Backoff,
    streams: u64,
    perhaps_cut: u32,
}

#[derive(Debug, Default)]
struct Position {
    bookmark: i64,
    head_seq: i64,
    first_seq: i64,
    transcript_id: String,
    heard: bool,
    heartbeats: u64,
}

impl Position {
    /// Checks what the server promises, and takes note of where the transcript stands.
    fn accept(&mut self, response: &SubscribeResponse) -> Result<(), Error> {
        if !self.transcript_id.is_empty() && response.transcript_id != self.transcript_id {
            let (new, old) = (&response.transcript_id, &self.transcript_id);
            let message = format!("the transcript is {new}, not {old} any more");
            return Err(Error::new(Code::FailedPrecondition, message).with_reason("TRANSCRIPT_CHANGED"));
        }
        let mut last = self.bookmark;
        if last == 0 && response.first_seq > 1 {
            // From the beginning, of a transcript whose beginning is gone.
            last = response.first_seq - 1;
        }
        for event in &response.events {
            last += 1;
            if event.seq != last {
                let message = format!("event {} came where {last} must come", event.seq);
                return Err(Error::new(Code::DataLoss, message));
            }
        }
        self.heard = true;
        self.head_seq = response.head_seq;
        self.first_seq = response.first_seq;
        self.transcript_id.clone_from(&response.transcript_id);
        Ok(())
    }
}

type Opening =
    Pin<Box<dyn Future<Output = Result<Response<Streaming<SubscribeResponse>>, Status>> + Send>>;

enum Link {
    /// The next stream is opened then.
    Waiting(Instant),
    /// Kept here, so that a dropped `next` does not undo it.
    Opening {
        stream: Opening,
        heard: Instant,
    },
    Open {
        stream: Box<Streaming<SubscribeResponse>>,
        heard: Instant,
    },
    Over(Option<Error>),
}

impl Subscription {
    pub(crate) fn new(client: Client, session_id: String, options: SubscribeOptions) -> Self {
        let now = Instant::now();
        Self {
            client,
            session_id,
            end: options.deadline.map(|deadline| now + deadline),
            position: Position {
                bookmark: options.after_seq,
                transcript_id: options.transcript_id.clone(),
                ..Position::default()
            },
            options,
            link: Link::Waiting(now),
            ready: VecDeque::new(),
            backoff: Backoff::default(),
            streams: 0,
            perhaps_cut: 0,
        }
    }

    /// The next event; `None` when the server ended the stream because the session was deleted.
    ///
    /// An event whose `body` is `None` is of a kind that this crate does not know: its seq counts.
    /// Cancel safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// When it can't go on: the session does not exist, the transcript is another one, the deadline
    /// has passed... It ends with that; every later call gives the same.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.position.bookmark = event.seq;
                return Ok(Some(event));
            }
            if !self.in_time() {
                self.finish(Some(Error::new(Code::DeadlineExceeded, "the deadline has passed")));
            }
            match &mut self.link {
                Link::Over(None) => return Ok(None),
                Link::Over(Some(error)) => return Err(error.clone()),
                Link::Waiting(until) => {
                    let until = *until;
                    sleep_until(limit(self.end, until)).await;
                    if self.in_time() {
                        self.open();
                    }
                }
                Link::Opening { .. } => self.opened().await,
                Link::Open { .. } => self.receive().await,
            }
        }
    }

    /// The events as a stream, which ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, Error>> + Send {
        unfold(Some(self), |state| async move {
            let mut subscription = state?;
            match subscription.next().await {
                Ok(event) => event.map(|event| (Ok(event), Some(subscription))),
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// Ends it; the server learns of it at once. [`Subscription::next`] then fails with `Cancelled`.
    pub fn cancel(&mut self) {
        self.ready.clear();
        self.finish(Some(Error::new(Code::Cancelled, "cancelled by the caller")));
    }

    /// The seq of the last event handed over: what to store, to go on from there another day.
    #[must_use]
    pub fn bookmark(&self) -> i64 {
        self.position.bookmark
    }

    /// The highest seq of the session when the server last spoke.
    #[must_use]
    pub fn head_seq(&self) -> i64 {
        self.position.head_seq
    }

    /// The lowest seq that the server still has.
    #[must_use]
    pub fn first_seq(&self) -> i64 {
        self.position.first_seq
    }

    /// Which transcript this is: to be stored beside the bookmark. Empty before the first response.
    #[must_use]
    pub fn transcript_id(&self) -> &str {
        &self.position.transcript_id
    }

    /// Whether all that has happened so far was handed over.
    #[must_use]
    pub fn caught_up(&self) -> bool {
        self.position.heard && self.position.bookmark >= self.position.head_seq
    }

    /// How many responses came without events.
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.position.heartbeats
    }

    /// How many times another stream was opened after the first.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.streams.saturating_sub(1)
    }

    fn open(&mut self) {
        let now = Instant::now();
        let mut request = Request::new(SubscribeRequest {
            session_id: self.session_id.clone(),
            after_seq: self.position.bookmark,
            transcript_id: self.position.transcript_id.clone(),
        });
        if let Some(end) = self.end {
            request.set_timeout(end.saturating_duration_since(now));
        }
        self.streams += 1;
        let mut sessions = self.client.sessions();
        let stream = Box::pin(async move { sessions.subscribe(request).await });
        self.link = Link::Opening { stream, heard: now };
    }

    async fn opened(&mut self) {
        let Link::Opening { stream, heard } = &mut self.link else { return };
        let heard = *heard;
        let limit = limit(self.end, heard + self.options.watchdog);
        match timeout_at(limit, stream).await {
            Ok(Ok(response)) => {
                self.link = Link::Open { stream: Box::new(response.into_inner()), heard };
            }
            Ok(Err(status)) => self.broke(status.into()),
            Err(_) => self.silent(),
        }
    }

    async fn receive(&mut self) {
        let Link::Open { stream, heard } = &mut self.link else { return };
        let limit = limit(self.end, *heard + self.options.watchdog);
        match timeout_at(limit, stream.message()).await {
            Ok(Ok(Some(response))) => self.take(response),
            Ok(Ok(None)) => self.finish(None),
            Ok(Err(status)) => self.broke(status.into()),
            Err(_) => self.silent(),
        }
    }

    fn take(&mut self, response: SubscribeResponse) {
        if let Link::Open { heard, .. } = &mut self.link {
            *heard = Instant::now();
        }
        self.perhaps_cut = 0;
        match self.position.accept(&response) {
            Ok(()) if response.events.is_empty() => self.position.heartbeats += 1,
            Ok(()) => self.backoff.reset(),
            Err(error) => return self.finish(Some(error)),
        }
        self.ready.extend(response.events);
    }

    /// Nothing was heard for too long, or the deadline has passed, which `next` looks at.
    fn silent(&mut self) {
        if !self.in_time() {
            return;
        }
        // A connection that swallows everything would swallow the next stream too.
        self.client = self.client.reconnected();
        let seconds = self.options.watchdog.as_secs_f64();
        self.broke(Error::new(Code::Unavailable, format!("nothing was heard for {seconds} s")));
    }

    fn broke(&mut self, error: Error) {
        if self.options.resume && self.heals(&error) && self.in_time() {
            let wait = self.backoff.next(error.retry_delay());
            self.link = Link::Waiting(Instant::now() + wait);
        } else {
            self.finish(Some(error));
        }
    }

    fn heals(&mut self, error: &Error) -> bool {
        if error.perhaps_cut() {
            self.perhaps_cut += 1;
            return self.perhaps_cut <= MAX_PERHAPS_CUT;
        }
        error.code() == Code::Unavailable || (self.position.heard && error.retry_delay().is_some())
    }

    fn finish(&mut self, error: Option<Error>) {
        if !matches!(self.link, Link::Over(_)) {
            self.link = Link::Over(error);
        }
    }

    fn in_time(&self) -> bool {
        self.end.is_none_or(|end| end > Instant::now())
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("session_id", &self.session_id)
            .field("options", &self.options)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

fn limit(end: Option<Instant>, until: Instant) -> Instant {
    end.map_or(until, |end| end.min(until))
}

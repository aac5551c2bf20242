//! The library against a server of this process that plays a script over a real unix socket.

use std::{
    collections::VecDeque,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream};
use sessiond_client::{
    Client, Code, Connection, Error, SubscribeOptions,
    v1::{
        CreateSessionRequest, Event, SendRequest, SendResponse, SubscribeRequest, SubscribeResponse,
        session_service_server::{SessionService, SessionServiceServer},
    },
};
use tokio::{net::UnixListener, sync::oneshot, time::timeout};
use tonic::{Request, Response, Status, transport::Server};

type Events = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

/// What one Subscribe says: its responses, then how it ends (`None`: it stays silent).
type Attempt = (Vec<SubscribeResponse>, Option<Result<(), Status>>);

#[derive(Clone, Default)]
struct Script {
    attempts: Arc<Mutex<VecDeque<Attempt>>>,
    subscribed: Arc<Mutex<Vec<SubscribeRequest>>>,
    refusals: Arc<Mutex<Vec<Status>>>,
    sent: Arc<Mutex<Vec<SendRequest>>>,
    left: Arc<Mutex<Option<oneshot::Sender<()>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}

/// Tells, when it is dropped, that the client has gone.
struct Leaving(Option<oneshot::Sender<()>>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.take().map(|left| left.send(()));
    }
}

#[tonic::async_trait]
impl SessionService for Script {
    async fn subscribe(&self, request: Request<SubscribeRequest>) -> Result<Response<Events>, Status> {
        locked(&self.subscribed).push(request.into_inner());
        let attempt = locked(&self.attempts).pop_front();
        let (responses, end) = attempt.ok_or_else(|| Status::not_found("the script is over"))?;
        let said = stream::iter(responses.into_iter().map(Ok));
        let leaving = Leaving(locked(&self.left).take());
        Ok(Response::new(match end {
            None => Box::pin(said.chain(stream::once(async move {
                let _leaving = leaving;
                std::future::pending().await
            }))),
            Some(Ok(())) => Box::pin(said),
            Some(Err(status)) => Box::pin(said.chain(stream::iter([Err(status)]))),
        }))
    }

    async fn send(&self, request: Request<SendRequest>) -> Result<Response<SendResponse>, Status> {
        locked(&self.sent).push(request.into_inner());
        match locked(&self.refusals).pop() {
            Some(status) => Err(status),
            None => {
                Ok(Response::new(SendResponse { message_id: "m1".into(), ..SendResponse::default() }))
            }
        }
    }
}

/// A client of a server that plays `script`. The server ends with the test's runtime.
fn client_of(script: &Script) -> Client {
    let name = format!("sessiond-{}.sock", sessiond_client::new_request_id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).expect("a socket in the temporary folder");
    let incoming = stream::unfold(listener, |listener| async {
        Some((listener.accept().await.map(|(socket, _)| socket), listener))
    });
    let service = SessionServiceServer::new(script.clone());
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let address = format!("unix://{}", path.display());
    Client::connect(&Connection::new().address(address)).expect("a client")
}

fn events(seqs: impl IntoIterator<Item = i64>) -> SubscribeResponse {
    let events: Vec<_> = seqs.into_iter().map(|seq| Event { seq, ..Event::default() }).collect();
    SubscribeResponse {
        head_seq: events.last().map_or(0, |event| event.seq),
        events,
        first_seq: 1,
        transcript_id: "t1".into(),
    }
}

fn playing(attempts: impl IntoIterator<Item = Attempt>) -> Script {
    Script { attempts: Arc::new(Mutex::new(attempts.into_iter().collect())), ..Script::default() }
}

/// The seqs up to the end, and the error if that is what it ended with.
async fn all(client: &Client, options: SubscribeOptions) -> (Vec<i64>, Option<Error>) {
    let stream = client.subscribe("s1", options).into_stream();
    let items: Vec<_> = timeout(Duration::from_secs(10), stream.collect()).await.expect("it ends");
    let mut seqs = Vec::new();
    for item in items {
        match item {
            Ok(event) => seqs.push(event.seq),
            Err(error) => return (seqs, Some(error)),
        }
    }
    (seqs, None)
}

#[tokio::test]
async fn it_goes_on_after_the_last_event_it_gave() {
    let script = playing([
        (vec![events(1..=3)], Some(Err(Status::unavailable("cut")))),
        (vec![], Some(Err(Status::unknown("stream removed")))),
        (vec![events(4..=5)], Some(Ok(()))),
    ]);
    let (seqs, error) = all(&client_of(&script), SubscribeOptions::new()).await;
    assert_eq!((seqs, error.is_none()), (vec![1, 2, 3, 4, 5], true));
    let asked = locked(&script.subscribed);
    let asked: Vec<_> = asked.iter().map(|r| (r.after_seq, r.transcript_id.as_str())).collect();
    assert_eq!(asked, [(0, ""), (3, "t1"), (3, "t1")]);
}

#[tokio::test]
async fn without_resume_the_first_error_ends_it() {
    let script = playing([(vec![events(1..=1)], Some(Err(Status::unavailable("cut"))))]);
    let (seqs, error) = all(&client_of(&script), SubscribeOptions::new().resume(false)).await;
    assert_eq!((seqs, error.expect("an error").code()), (vec![1], Code::Unavailable));
}

#[tokio::test]
async fn a_promise_that_is_broken_is_data_loss() {
    for broken in [vec![1, 2, 4], vec![1, 1], vec![2]] {
        let script = playing([(vec![events(broken)], None)]);
        let (seqs, error) = all(&client_of(&script), SubscribeOptions::new()).await;
        assert_eq!((seqs, error.expect("an error").code()), (vec![], Code::DataLoss));
    }
}

#[tokio::test]
async fn a_silent_server_is_left_for_a_new_connection() {
    let script = playing([(vec![events(1..=1)], None), (vec![events(2..=2)], Some(Ok(())))]);
    let (left, gone) = oneshot::channel();
    *locked(&script.left) = Some(left);
    let options = SubscribeOptions::new().watchdog(Duration::from_millis(300));
    let (seqs, error) = all(&client_of(&script), options).await;
    assert_eq!((seqs, error.is_none()), (vec![1, 2], true));
    timeout(Duration::from_secs(5), gone).await.expect("the server sees it go").expect("it was told");
}

#[tokio::test]
async fn a_deadline_ends_it_for_good() {
    let script = playing([(vec![events(1..=2)], None)]);
    let options = SubscribeOptions::new().deadline(Duration::from_millis(300));
    let (seqs, error) = all(&client_of(&script), options).await;
    assert_eq!((seqs, error.expect("an error").code()), (vec![1, 2], Code::DeadlineExceeded));
    assert_eq!(locked(&script.subscribed).len(), 1);
}

#[tokio::test]
async fn a_dropped_wait_loses_nothing() {
    let script = playing([(vec![events(1..=3)], None)]);
    let mut subscription = client_of(&script).subscribe("s1", SubscribeOptions::new());
    let mut seqs = Vec::new();
    while seqs.len() < 3 {
        if let Ok(event) = timeout(Duration::from_micros(50), subscription.next()).await {
            seqs.push(event.expect("no error").expect("an event").seq);
        }
    }
    assert_eq!((seqs, subscription.reconnects()), (vec![1, 2, 3], 0));
    assert!(subscription.caught_up());
}

#[tokio::test]
async fn cancel_reaches_the_server_and_ends_it() {
    let script = playing([(vec![events(1..=2)], None)]);
    let (left, gone) = oneshot::channel();
    *locked(&script.left) = Some(left);
    let mut subscription = client_of(&script).subscribe("s1", SubscribeOptions::new());
    subscription.next().await.expect("no error").expect("an event");
    subscription.cancel();
    assert_eq!(subscription.next().await.expect_err("it was cancelled").code(), Code::Cancelled);
    assert_eq!(subscription.bookmark(), 1);
    timeout(Duration::from_secs(5), gone).await.expect("the server sees it go").expect("it was told");
}

#[tokio::test]
async fn a_retried_call_keeps_its_request_id() {
    let script = Script::default();
    *locked(&script.refusals) = vec![Status::unavailable("away"), Status::unavailable("away")];
    let mut call =
        client_of(&script).retry(SendRequest { text: "once".into(), ..SendRequest::default() });
    let response = call.send().await.expect("the third attempt");
    assert_eq!((response.message_id.as_str(), call.attempts()), ("m1", 3));
    let sent = locked(&script.sent);
    assert!(sent.iter().all(|request| request.request_id == call.request_id()));
    assert_eq!((sent.len(), call.request_id().len()), (3, 36));
}

#[tokio::test]
async fn a_refusal_is_not_tried_again() {
    let script = Script::default();
    *locked(&script.refusals) = vec![Status::failed_precondition("exited")];
    let request = SendRequest { request_id: "mine".into(), ..SendRequest::default() };
    let mut call = client_of(&script).retry(request);
    assert_eq!(call.send().await.expect_err("a refusal").code(), Code::FailedPrecondition);
    assert_eq!((call.attempts(), call.request_id()), (1, "mine"));
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let client = Client::connect(&Connection::new().address("unix:///no/such.sock")).expect("a client");
    let error = client.call(CreateSessionRequest::default()).await.expect_err("nobody is there");
    assert_eq!(error.code(), Code::Unavailable);
}

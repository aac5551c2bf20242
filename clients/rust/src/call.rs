use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};

use crate::{Client, Error, backoff::Backoff, client::DEFAULT_DEADLINE, v1};

const ATTEMPTS: u32 = 5;

/// A request with one answer. Every such request of the contract is one; there can be no others.
pub trait Call: sealed::Sealed + Clone + Send + 'static {
    /// What the server answers.
    type Response: Send;

    #[doc(hidden)]
    fn dispatch(
        client: &Client,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;
}

/// A request that changes something, and that the server carries out once however often it comes
/// with the same `request_id`.
pub trait Mutation: Call {
    /// The id that makes repeats one.
    fn request_id(&self) -> &str;

    /// Names the request; an id that was used with another content is refused.
    fn set_request_id(&mut self, id: String);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! calls {
    ($($service:ident . $method:ident ($request:ident) -> $response:ident;)*) => {$(
        impl sealed::Sealed for v1::$request {}

        impl Call for v1::$request {
            type Response = v1::$response;

            async fn dispatch(
                client: &Client,
                request: Request<Self>,
            ) -> Result<Response<Self::Response>, Status> {
                client.$service().$method(request).await
            }
        }
    )*};
}

macro_rules! mutations {
    ($($request:ident)*) => {$(
        impl Mutation for v1::$request {
            fn request_id(&self) -> &str {
                &self.request_id
            }

            fn set_request_id(&mut self, id: String) {
                self.request_id = id;
            }
        }
    )*};
}

calls! {
    sessions.create_session(CreateSessionRequest) -> CreateSessionResponse;
    sessions.get_session(GetSessionRequest) -> GetSessionResponse;
    sessions.list_sessions(ListSessionsRequest) -> ListSessionsResponse;
    sessions.update_session(UpdateSessionRequest) -> UpdateSessionResponse;
    sessions.delete_session(DeleteSessionRequest) -> DeleteSessionResponse;
    sessions.list_events(ListEventsRequest) -> ListEventsResponse;
    sessions.send(SendRequest) -> SendResponse;
    sessions.edit_message(EditMessageRequest) -> EditMessageResponse;
    sessions.move_message(MoveMessageRequest) -> MoveMessageResponse;
    sessions.unqueue(UnqueueRequest) -> UnqueueResponse;
    sessions.answer(AnswerRequest) -> AnswerResponse;
    sessions.control(ControlRequest) -> ControlResponse;
    attachments.write_attachment(WriteAttachmentRequest) -> WriteAttachmentResponse;
    attachments.get_attachment(GetAttachmentRequest) -> GetAttachmentResponse;
    server.get_server_info(GetServerInfoRequest) -> GetServerInfoResponse;
}

mutations! {
    CreateSessionRequest UpdateSessionRequest DeleteSessionRequest SendRequest EditMessageRequest
    MoveMessageRequest UnqueueRequest AnswerRequest ControlRequest
}

/// A random `request_id`.
#[must_use]
pub fn new_request_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// A call that is repeated while the answer is `Unavailable`: at most 5 times, always with the same
/// `request_id` and content, so the server carries it out once.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `send`"]
pub struct Retry<R> {
    client: Client,
    request: R,
    deadline: Duration,
    attempts: u32,
}

impl<R: Mutation> Retry<R> {
    pub(crate) fn new(client: Client, mut request: R) -> Self {
        if request.request_id().is_empty() {
            request.set_request_id(new_request_id());
        }
        Self { client, request, deadline: DEFAULT_DEADLINE, attempts: 0 }
    }

    /// How long all attempts together may take; 30 s unless set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The id in use: the request's own, or a random one when that was empty.
    #[must_use]
    pub fn request_id(&self) -> &str {
        self.request.request_id()
    }

    /// How many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Makes the call.
    ///
    /// # Errors
    /// As [`Client::call`]: what the last attempt ended with.
    pub async fn send(&mut self) -> Result<R::Response, Error> {
        let end = Instant::now() + self.deadline;
        let mut backoff = Backoff::default();
        loop {
            self.attempts += 1;
            let left = end.saturating_duration_since(Instant::now());
            let error = match self.client.call_within(left, self.request.clone()).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let wait = backoff.next(error.retry_delay());
            let over = self.attempts >= ATTEMPTS || Instant::now() + wait >= end;
            if error.code() != Code::Unavailable || over {
                return Err(error);
            }
            sleep(wait).await;
        }
    }
}

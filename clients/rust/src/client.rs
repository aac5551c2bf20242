use std::{fmt, time::Duration};

use tokio::time::{Instant, timeout_at};
use tonic::{Code, Request, service::interceptor::InterceptedService, transport::Channel};

use crate::{
    Connection, ConnectionError, Credentials, Error, Retry, SubscribeOptions, Subscription,
    call::{Call, Mutation},
    connection::Target,
    v1::{
        attachment_service_client::AttachmentServiceClient, server_service_client::ServerServiceClient,
        session_service_client::SessionServiceClient,
    },
};

/// How long a call may take unless another deadline is given. Streams have none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// How far apart the two ends' clocks may see one deadline pass.
const SAME_MOMENT: Duration = Duration::from_millis(20);

const RECEIVE_LIMIT: usize = 8 << 20;

/// The transport under the generated clients: a channel that adds the token.
pub type Service = InterceptedService<Channel, Credentials>;

/// A client of one server. Cheap to clone; all clones share one connection.
#[derive(Clone)]
pub struct Client {
    target: Target,
    channel: Channel,
}

impl Client {
    /// Makes a client. It connects when it is first used, and again whenever the connection is lost.
    ///
    /// # Errors
    /// When an address, a file or a certificate that was given or discovered can't be used.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn connect(connection: &Connection) -> Result<Self, ConnectionError> {
        let target = connection.resolve()?;
        let channel = target.channel();
        Ok(Self { target, channel })
    }

    /// The address in use, after discovery.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.target.address
    }

    /// Makes one call, with a deadline of 30 s. The request's type says which call.
    ///
    /// # Errors
    /// What the server answered, or that it could not be reached.
    pub async fn call<R: Call>(&self, request: R) -> Result<R::Response, Error> {
        self.call_within(DEFAULT_DEADLINE, request).await
    }

    /// Makes one call that may take as long as `deadline`.
    ///
    /// # Errors
    /// As [`Client::call`]; `DeadlineExceeded` when it took longer.
    pub async fn call_within<R: Call>(
        &self,
        deadline: Duration,
        request: R,
    ) -> Result<R::Response, Error> {
        let end = Instant::now() + deadline;
        let mut request = Request::new(request);
        request.set_timeout(deadline);
        let late = || {
            let text = format!("no answer within {} ms", deadline.as_millis());
            Error::new(Code::DeadlineExceeded, text)
        };
        match timeout_at(end, R::dispatch(self, request)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => {
                let error = Error::from(status);
                // The server counts the same time, and may be the first to end the call: a stream that
                // is reset, which looks like a connection that was cut.
                let cut = error.code() == Code::Unavailable && error.reason_name().is_empty();
                Err(if cut && Instant::now() + SAME_MOMENT >= end { late() } else { error })
            }
            Err(_) => Err(late()),
        }
    }

    /// Prepares a call that is repeated, with one `request_id`, while the server can't be reached.
    pub fn retry<R: Mutation>(&self, request: R) -> Retry<R> {
        Retry::new(self.clone(), request)
    }

    /// Follows a session: its history after [`SubscribeOptions::after_seq`], then what happens.
    /// Nothing is sent before the first event is asked for.
    pub fn subscribe(&self, session_id: impl Into<String>, options: SubscribeOptions) -> Subscription {
        Subscription::new(self.clone(), session_id.into(), options)
    }

    /// The generated client of the sessions, for callers who want tonic's own types.
    #[must_use]
    pub fn sessions(&self) -> SessionServiceClient<Service> {
        SessionServiceClient::new(self.service()).max_decoding_message_size(RECEIVE_LIMIT)
    }

    /// The generated client of the attachments.
    #[must_use]
    pub fn attachments(&self) -> AttachmentServiceClient<Service> {
        AttachmentServiceClient::new(self.service()).max_decoding_message_size(RECEIVE_LIMIT)
    }

    /// The generated client that tells about the server itself.
    #[must_use]
    pub fn server(&self) -> ServerServiceClient<Service> {
        ServerServiceClient::new(self.service()).max_decoding_message_size(RECEIVE_LIMIT)
    }

    /// The same client over a connection of its own.
    pub(crate) fn reconnected(&self) -> Self {
        Self { channel: self.target.channel(), target: self.target.clone() }
    }

    fn service(&self) -> Service {
        InterceptedService::new(self.channel.clone(), Credentials(self.target.token.clone()))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.target.address).finish_non_exhaustive()
    }
}

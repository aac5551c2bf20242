use std::{collections::BTreeMap, error, fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::v1::ErrorReason;

const DOMAIN: &str = "sessiond";
const PREFIX: &str = "ERROR_REASON_";

/// A field of a request that the server did not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The field, as the proto spells it.
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

/// A call that failed: the gRPC status and the details that sessiond sends with it.
#[derive(Clone, Debug)]
pub struct Error {
    code: Code,
    message: String,
    reason: String,
    metadata: BTreeMap<String, String>,
    violations: Vec<Violation>,
    retry_delay: Option<Duration>,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            reason: String::new(),
            metadata: BTreeMap::new(),
            violations: Vec::new(),
            retry_delay: None,
        }
    }

    /// The gRPC status code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What happened, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The reason, or `None` when the server named none or one that this crate does not know;
    /// [`Error::reason_name`] has that one too.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        ErrorReason::from_str_name(&format!("{PREFIX}{}", self.reason))
    }

    /// The reason as it was sent, `SESSION_NOT_FOUND` for one; empty when there is none.
    #[must_use]
    pub fn reason_name(&self) -> &str {
        &self.reason
    }

    /// What the reason is about: ids, limits, positions.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The fields of the request that are at fault.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// After how long the same call may succeed, when the server said so.
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        self.retry_delay
    }

    /// Whether this may be one of a transport's names for a cut connection.
    pub(crate) fn perhaps_cut(&self) -> bool {
        let names = matches!(self.code, Code::Internal | Code::Unknown | Code::Cancelled);
        names && self.reason.is_empty()
    }

    pub(crate) fn with_reason(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // A status with a source was made on this side, out of a connection that failed.
        let cut = error::Error::source(&status).is_some()
            && matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled);
        let code = if cut { Code::Unavailable } else { status.code() };
        let mut error = Self::new(code, status.message());
        let details = status.get_error_details();
        if let Some(info) = details.error_info().filter(|info| info.domain == DOMAIN) {
            error.reason.clone_from(&info.reason);
            error.metadata = info.metadata.clone().into_iter().collect();
        }
        if let Some(request) = details.bad_request() {
            error.violations = request
                .field_violations
                .iter()
                .map(|v| Violation { field: v.field.clone(), description: v.description.clone() })
                .collect();
        }
        error.retry_delay = details.retry_info().and_then(|info| info.retry_delay);
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        write!(f, ": {}", self.message)
    }
}

impl error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    fn with_reason(code: Code, reason: &str, domain: &str) -> Error {
        let metadata = [("session_id".to_owned(), "s1".to_owned())];
        let details = ErrorDetails::with_error_info(reason, domain, metadata);
        Status::with_error_details(code, "no", details).into()
    }

    #[test]
    fn details_are_typed() {
        let mut details = ErrorDetails::with_error_info("QUEUE_FULL", DOMAIN, []);
        details.set_retry_info(Some(Duration::from_millis(1500)));
        details.add_bad_request_violation("text", "is too long");
        let error = Error::from(Status::with_error_details(Code::ResourceExhausted, "full", details));
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert_eq!(error.reason(), Some(ErrorReason::QueueFull));
        assert_eq!(error.retry_delay(), Some(Duration::from_millis(1500)));
        assert_eq!(error.violations()[0].field, "text");
        assert_eq!(error.to_string(), "ResourceExhausted (QUEUE_FULL): full");
    }

    #[test]
    fn a_reason_from_the_future_keeps_its_name() {
        let error = with_reason(Code::NotFound, "MOON_NOT_FOUND", DOMAIN);
        assert_eq!(error.reason(), None);
        assert_eq!(error.reason_name(), "MOON_NOT_FOUND");
        assert_eq!(error.metadata()["session_id"], "s1");
    }

    #[test]
    fn a_reason_of_another_domain_is_not_ours() {
        let error = with_reason(Code::Internal, "QUEUE_FULL", "example.com");
        assert_eq!(error.reason_name(), "");
        assert!(error.perhaps_cut());
    }

    #[test]
    fn a_reason_of_the_servers_own_is_no_cut() {
        assert!(!with_reason(Code::Internal, "INTERNAL", DOMAIN).perhaps_cut());
        assert!(Error::new(Code::Cancelled, "").perhaps_cut());
        assert!(!Error::new(Code::PermissionDenied, "").perhaps_cut());
    }
}

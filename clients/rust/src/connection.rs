use std::{
    env, error, fmt, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};

const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the server is and how to be let in; what is left out is discovered.
///
/// The address is the first that is there of [`Connection::address`], `SESSIOND_ADDRESS`, and what a
/// server of this machine wrote to its runtime folder. The token is the first of
/// [`Connection::token`], [`Connection::token_file`], `SESSIOND_TOKEN`, `SESSIOND_TOKEN_FILE`, and the
/// token file of that server; a unix socket needs none.
#[derive(Clone, Default)]
#[must_use]
pub struct Connection {
    address: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    tls: Tls,
}

impl Connection {
    /// A connection of which everything is discovered.
    pub fn new() -> Self {
        Self::default()
    }

    /// `unix:///path/to/sessiond.sock`, `host:port`, or `https://host:port` for TLS. A token does not go
    /// to `host:port` unless that is this machine.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// The bearer token itself.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A file with the bearer token. It is read again for every call, so a new token needs no new client.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token_file = Some(path.into());
        self
    }

    /// A PEM file with the certificates to trust, instead of `SESSIOND_TLS_CA`, the one that a server
    /// of this machine announces, or the system's.
    pub fn tls_ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(path.into());
        self
    }

    /// PEM files with the client's own certificate and its key, instead of `SESSIOND_TLS_CERT` and
    /// `SESSIOND_TLS_KEY`.
    pub fn tls_identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.certificate = Some(certificate.into());
        self.tls.key = Some(key.into());
        self
    }

    pub(crate) fn resolve(&self) -> Result<Target, ConnectionError> {
        self.resolve_in(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn resolve_in(&self, env: Env<'_>) -> Result<Target, ConnectionError> {
        let runtime = runtime_folder(env)?;
        let announced = Announced::read(&runtime);
        let address = filled(self.address.as_ref())
            .or_else(|| env("SESSIOND_ADDRESS"))
            .unwrap_or_else(|| announced.address(&runtime));
        let place = Place::parse(&address)?;
        let token = match place {
            Place::Unix(_) => Token::None,
            _ => self.token_for(env, &announced, &runtime),
        };
        if token != Token::None && place.exposes() {
            return Err(ConnectionError(format!(
                "a token would cross the network in the clear to {address}: use https://{address}"
            )));
        }
        let endpoint = place.endpoint(&self.tls.completed(env, &announced))?;
        Ok(Target { address, place, endpoint, token })
    }

    fn token_for(&self, env: Env<'_>, announced: &Announced, runtime: &Path) -> Token {
        filled(self.token.as_ref())
            .map(Token::Text)
            .or_else(|| self.token_file.clone().map(Token::File))
            .or_else(|| env("SESSIOND_TOKEN").map(Token::Text))
            .or_else(|| env("SESSIOND_TOKEN_FILE").map(|path| Token::File(path.into())))
            .unwrap_or_else(|| announced.token(runtime))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("token_file", &self.token_file)
            .field("tls", &self.tls)
            .finish()
    }
}

/// What was given or discovered can't be used; the text says what to do.
#[derive(Debug)]
pub struct ConnectionError(String);

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for ConnectionError {}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

fn filled(value: Option<&String>) -> Option<String> {
    value.filter(|text| !text.is_empty()).cloned()
}

/// Files that TLS needs. Those of the client itself belong together.
#[derive(Clone, Debug, Default)]
struct Tls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Tls {
    fn completed(&self, env: Env<'_>, announced: &Announced) -> Self {
        let or_env =
            |path: &Option<PathBuf>, name| path.clone().or_else(|| env(name).map(PathBuf::from));
        let announced_ca = || filled(announced.tls_ca.as_ref()).map(PathBuf::from);
        Self {
            ca: or_env(&self.ca, "SESSIOND_TLS_CA").or_else(announced_ca),
            certificate: or_env(&self.certificate, "SESSIOND_TLS_CERT"),
            key: or_env(&self.key, "SESSIOND_TLS_KEY"),
        }
    }

    fn config(&self) -> Result<ClientTlsConfig, ConnectionError> {
        let mut config = ClientTlsConfig::new();
        config = match &self.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(pem(path)?)),
            None => config.with_native_roots(),
        };
        match (&self.certificate, &self.key) {
            (None, None) => Ok(config),
            (Some(certificate), Some(key)) => {
                Ok(config.identity(Identity::from_pem(pem(certificate)?, pem(key)?)))
            }
            _ => Err(ConnectionError(
                "a client certificate needs its key, and the key its certificate: give both".into(),
            )),
        }
    }
}

fn pem(path: &Path) -> Result<Vec<u8>, ConnectionError> {
    fs::read(path).map_err(|error| ConnectionError(format!("can't read {}: {error}", path.display())))
}

fn runtime_folder(env: Env<'_>) -> Result<PathBuf, ConnectionError> {
    if let Some(folder) = env("SESSIOND_RUNTIME_DIR") {
        return Ok(folder.into());
    }
    if let Some(folder) = env("XDG_RUNTIME_DIR") {
        return Ok(Path::new(&folder).join("sessiond"));
    }
    let data = env("SESSIOND_DATA_DIR")
        .map(PathBuf::from)
        .or_else(|| env("XDG_DATA_HOME").map(|home| Path::new(&home).join("sessiond")))
        .or_else(|| env("HOME").map(|home| Path::new(&home).join(".local/share/sessiond")));
    data.map(|folder| folder.join("run")).ok_or_else(|| {
        ConnectionError("neither HOME nor SESSIOND_RUNTIME_DIR is set: set SESSIOND_ADDRESS".into())
    })
}

/// `address.json`: what the server of this machine says about itself.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Announced {
    unix: Option<String>,
    tcp: Option<String>,
    token_file: Option<String>,
    tls_ca: Option<String>,
}

impl Announced {
    /// Nothing when there is no such file, or one that no server wrote.
    fn read(runtime: &Path) -> Self {
        let text = fs::read(runtime.join("address.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn address(&self, runtime: &Path) -> String {
        let tcp = || {
            let address = filled(self.tcp.as_ref())?;
            let tls = filled(self.tls_ca.as_ref()).is_some() && !address.contains("://");
            Some(if tls { format!("https://{address}") } else { address })
        };
        let usual = || format!("unix://{}", runtime.join("sessiond.sock").display());
        filled(self.unix.as_ref()).or_else(tcp).unwrap_or_else(usual)
    }

    fn token(&self, runtime: &Path) -> Token {
        let beside = || Some(runtime.join("token")).filter(|path| path.exists());
        let file = filled(self.token_file.as_ref()).map(PathBuf::from).or_else(beside);
        file.map_or(Token::None, Token::File)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Plain(String),
    Tls(String),
}

impl Place {
    fn parse(address: &str) -> Result<Self, ConnectionError> {
        let bad = |why: &str| {
            ConnectionError(format!(
                "{address:?} is no address ({why}): write unix:///path, host:port or https://host:port"
            ))
        };
        if let Some(path) = unix_path(address) {
            return if path.is_empty() { Err(bad("no path")) } else { Ok(Self::Unix(path.into())) };
        }
        let (tls, rest) = match address.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, address.strip_prefix("http://").unwrap_or(address)),
        };
        let authority = rest.trim_end_matches('/');
        let uri: Uri = format!("http://{authority}").parse().map_err(|_| bad("not host:port"))?;
        if uri.port().is_none() || uri.path() != "/" {
            return Err(bad("not host:port"));
        }
        let authority = authority.to_owned();
        Ok(if tls { Self::Tls(authority) } else { Self::Plain(authority) })
    }

    /// Whether what is sent there can be read on the way.
    fn exposes(&self) -> bool {
        let Self::Plain(authority) = self else { return false };
        let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = |ip: IpAddr| ip.is_loopback();
        host != "localhost" && !host.parse().is_ok_and(loopback)
    }

    fn endpoint(&self, tls: &Tls) -> Result<Endpoint, ConnectionError> {
        let uri = match self {
            Self::Unix(_) => "http://localhost".to_owned(),
            Self::Plain(authority) => format!("http://{authority}"),
            Self::Tls(authority) => format!("https://{authority}"),
        };
        let failed = |error| ConnectionError(format!("{uri}: {error}"));
        let endpoint = Endpoint::from_shared(uri.clone())
            .map_err(failed)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20);
        if matches!(self, Self::Tls(_)) {
            endpoint.tls_config(tls.config()?).map_err(failed)
        } else {
            Ok(endpoint)
        }
    }
}

fn unix_path(address: &str) -> Option<&str> {
    if address.starts_with('/') {
        return Some(address);
    }
    let path = address.strip_prefix("unix:")?;
    Some(path.strip_prefix("//").unwrap_or(path))
}

/// A resolved connection.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: String,
    place: Place,
    endpoint: Endpoint,
    pub(crate) token: Token,
}

impl Target {
    /// A channel that connects when it is first used, and again when it has lost its connection.
    pub(crate) fn channel(&self) -> Channel {
        let Place::Unix(path) = &self.place else {
            return self.endpoint.connect_lazy();
        };
        let path = path.clone();
        self.endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { io::Result::Ok(TokioIo::new(UnixStream::connect(path).await?)) }
        }))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Token {
    #[default]
    None,
    Text(String),
    File(PathBuf),
}

/// Adds the bearer token to every call.
#[derive(Clone, Debug)]
pub struct Credentials(pub(crate) Token);

impl Interceptor for Credentials {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let token = match &self.0 {
            Token::None => return Ok(request),
            Token::Text(text) => text.clone(),
            Token::File(path) => held(path)?,
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

/// Reads a token file; one that holds nothing is no better than none.
fn held(path: &Path) -> Result<String, Status> {
    let shown = path.display();
    let token = fs::read_to_string(path).map_err(|error| {
        Status::unauthenticated(format!("can't read the token file {shown}: {error}"))
    })?;
    if token.trim().is_empty() {
        return Err(Status::unauthenticated(format!("the token file is empty: {shown}")));
    }
    Ok(token)
}

#[cfg(test)]
mod tests;

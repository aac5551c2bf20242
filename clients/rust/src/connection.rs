use std::{
    env, error, fmt, fs, io,
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
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri},
};

const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the server is and how to be let in; what is left out is discovered.
///
/// The address is the first that is there of [`Connection::address`], `SESSIOND_ADDRESS`, and what a
/// server of this machine wrote to its runtime folder. The token is the first of
/// [`Connection::token`], [`Connection::token_file`], `SESSIOND_TOKEN`, `SESSIOND_TOKEN_FILE`, and the
/// file that belongs to a discovered TCP address.
#[derive(Clone, Default)]
#[must_use]
pub struct Connection {
    address: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
}

impl Connection {
    /// A connection of which everything is discovered.
    pub fn new() -> Self {
        Self::default()
    }

    /// `unix:///path/to/sessiond.sock`, `host:port`, or `https://host:port` for TLS.
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

    /// A PEM file with the certificates to trust, instead of the system's.
    pub fn tls_ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls_ca = Some(path.into());
        self
    }

    pub(crate) fn resolve(&self) -> Result<Target, ConnectionError> {
        self.resolve_in(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn resolve_in(&self, env: Env<'_>) -> Result<Target, ConnectionError> {
        let runtime = runtime_folder(env)?;
        let given = filled(self.address.as_ref()).or_else(|| env("SESSIOND_ADDRESS"));
        let announced = Announced::read(&runtime)?;
        let discovered = given.is_none();
        let address = given.unwrap_or_else(|| announced.address(&runtime));
        let place = Place::parse(&address)?;
        let mut token = self.given_token(env);
        if discovered && !matches!(place, Place::Unix(_)) && matches!(token, Token::None) {
            token = announced.token(&runtime);
        }
        let tls_ca = self
            .tls_ca
            .clone()
            .or_else(|| env("SESSIOND_TLS_CA").map(PathBuf::from))
            .or_else(|| filled(announced.tls_ca.as_ref()).map(PathBuf::from));
        let endpoint = place.endpoint(tls_ca.as_deref())?;
        Ok(Target { address, place, endpoint, token })
    }

    fn given_token(&self, env: Env<'_>) -> Token {
        filled(self.token.as_ref())
            .map(Token::Text)
            .or_else(|| self.token_file.clone().map(Token::File))
            .or_else(|| env("SESSIOND_TOKEN").map(Token::Text))
            .or_else(|| env("SESSIOND_TOKEN_FILE").map(|path| Token::File(path.into())))
            .unwrap_or_default()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("token_file", &self.token_file)
            .field("tls_ca", &self.tls_ca)
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
    fn read(runtime: &Path) -> Result<Self, ConnectionError> {
        let path = runtime.join("address.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                ConnectionError(format!("{} is not what a server writes: {error}", path.display()))
            }),
            // Not there, or another user's: there is nothing to discover.
            Err(_) => Ok(Self::default()),
        }
    }

    fn address(&self, runtime: &Path) -> String {
        if let Some(unix) = filled(self.unix.as_ref()) {
            return if unix.starts_with("unix:") { unix } else { format!("unix://{unix}") };
        }
        filled(self.tcp.as_ref())
            .unwrap_or_else(|| format!("unix://{}", runtime.join("sessiond.sock").display()))
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
        if let Some(path) = address.strip_prefix("unix://").or(address.strip_prefix("unix:")) {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Unix(path))
            } else {
                Err(bad("path not absolute"))
            };
        }
        let (tls, authority) = match address.strip_prefix("https://") {
            Some(rest) => (true, rest.trim_end_matches('/')),
            None => (false, address),
        };
        let uri: Uri = format!("http://{authority}").parse().map_err(|_| bad("not host:port"))?;
        if uri.port().is_none() || uri.path() != "/" {
            return Err(bad("not host:port"));
        }
        let authority = authority.to_owned();
        Ok(if tls { Self::Tls(authority) } else { Self::Plain(authority) })
    }

    fn endpoint(&self, tls_ca: Option<&Path>) -> Result<Endpoint, ConnectionError> {
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
        if !matches!(self, Self::Tls(_)) {
            return Ok(endpoint);
        }
        let tls = match tls_ca {
            Some(path) => {
                let pem = fs::read(path).map_err(|error| {
                    ConnectionError(format!("can't read the CA file {}: {error}", path.display()))
                })?;
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        endpoint.tls_config(tls).map_err(failed)
    }
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
            Token::File(path) => fs::read_to_string(path).map_err(|error| {
                let path = path.display();
                Status::unauthenticated(format!("can't read the token file {path}: {error}"))
            })?,
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim_end())
            .parse()
            .map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

#[cfg(test)]
mod tests;

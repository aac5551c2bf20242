use super::*;
use std::collections::HashMap;

/// A runtime folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("sessiond-{}", crate::new_request_id()));
        fs::create_dir(&path).expect("a folder for temporary files");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a file in a new folder");
    }

    fn resolve(
        &self,
        connection: &Connection,
        more: &[(&str, &str)],
    ) -> Result<Target, ConnectionError> {
        let mut variables: HashMap<_, _> = more.iter().copied().collect();
        let runtime = self.0.display().to_string();
        variables.insert("SESSIOND_RUNTIME_DIR", &runtime);
        connection.resolve_in(&|name| variables.get(name).map(|v| (*v).to_owned()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn runtime(variables: &[(&str, &str)]) -> String {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    let folder = runtime_folder(&|name| variables.get(name).map(|v| (*v).to_owned()));
    folder.expect("a folder").display().to_string()
}

#[test]
fn the_runtime_folder_is_the_first_that_is_named() {
    let all = [
        ("SESSIOND_RUNTIME_DIR", "/a"),
        ("XDG_RUNTIME_DIR", "/b"),
        ("SESSIOND_DATA_DIR", "/c"),
        ("XDG_DATA_HOME", "/d"),
        ("HOME", "/e"),
    ];
    let folders = ["/a", "/b/sessiond", "/c/run", "/d/sessiond/run", "/e/.local/share/sessiond/run"];
    for (from, folder) in folders.iter().enumerate() {
        assert_eq!(runtime(&all[from..]), *folder);
    }
    assert!(runtime_folder(&|_| None).is_err());
}

#[test]
fn without_a_server_the_usual_socket_is_meant() {
    let folder = Folder::new();
    let target = folder.resolve(&Connection::new(), &[]).expect("a target");
    assert_eq!(target.address, format!("unix://{}/sessiond.sock", folder.0.display()));
    assert_eq!(target.token, Token::None);
}

#[test]
fn the_unix_socket_goes_first_and_needs_no_token() {
    let folder = Folder::new();
    folder.write(
        "address.json",
        r#"{"unix": "unix:/s/x.sock", "tcp": "h:1", "token_file": "/t", "new": 1}"#,
    );
    let target = folder.resolve(&Connection::new(), &[("SESSIOND_TOKEN", "t")]).expect("a target");
    assert_eq!((target.place, target.token), (Place::Unix("/s/x.sock".into()), Token::None));
}

#[test]
fn a_discovered_tcp_address_brings_its_token() {
    let folder = Folder::new();
    folder.write("address.json", r#"{"tcp": "127.0.0.1:1", "token_file": "/t"}"#);
    let target = folder.resolve(&Connection::new(), &[]).expect("a target");
    assert_eq!(target.token, Token::File("/t".into()));

    folder.write("address.json", r#"{"tcp": "127.0.0.1:1"}"#);
    folder.write("token", "secret\n");
    let target = folder.resolve(&Connection::new(), &[]).expect("a target");
    assert_eq!(target.token, Token::File(folder.0.join("token")));
}

#[test]
fn no_token_crosses_the_network_in_the_clear() {
    let folder = Folder::new();
    let token = Connection::new().token("secret");
    for host in ["example.com", "10.0.0.1", "[2001:db8::1]", "localhost.example.com"] {
        let refused = folder.resolve(&token.clone().address(format!("{host}:1")), &[]);
        let error = refused.err().expect(host).to_string();
        assert!(error.contains(&format!("use https://{host}:1")), "{error}");
        assert!(folder.resolve(&token.clone().address(format!("https://{host}:1")), &[]).is_ok());
        assert!(folder.resolve(&Connection::new().address(format!("{host}:1")), &[]).is_ok());
    }
    for host in ["localhost", "127.3.2.1", "[::1]"] {
        assert!(folder.resolve(&token.clone().address(format!("{host}:1")), &[]).is_ok(), "{host}");
    }
}

#[test]
fn an_announced_authority_means_tls() {
    let folder = Folder::new();
    folder.write("address.json", r#"{"tcp": "h:1", "tls_ca": "/no/ca.pem"}"#);
    let error = folder.resolve(&Connection::new(), &[]).err().expect("no such file").to_string();
    assert!(error.contains("/no/ca.pem"), "{error}");
}

#[test]
fn what_is_given_goes_before_the_environment() {
    let folder = Folder::new();
    let env =
        [("SESSIOND_ADDRESS", "localhost:1"), ("SESSIOND_TOKEN", "env"), ("SESSIOND_TOKEN_FILE", "/f")];
    let target = folder.resolve(&Connection::new(), &env).expect("a target");
    assert_eq!((target.address.as_str(), target.token), ("localhost:1", Token::Text("env".into())));

    let given = Connection::new().address("localhost:2").token_file("/g");
    let target = folder.resolve(&given, &env).expect("a target");
    assert_eq!((target.address.as_str(), target.token), ("localhost:2", Token::File("/g".into())));

    let target = folder.resolve(&given.token("given"), &env).expect("a target");
    assert_eq!(target.token, Token::Text("given".into()));

    let target = folder.resolve(&Connection::new().address("[::1]:3"), &env[2..]).expect("a target");
    assert_eq!(target.token, Token::File("/f".into()));
}

#[test]
fn an_address_that_is_none_says_how_to_write_one() {
    for address in ["localhost", "unix:", "host:port", "https://host", "h:1/path", "h p:1", ""] {
        let error = Place::parse(address).expect_err(address).to_string();
        assert!(error.contains("write unix:///path, host:port or https://host:port"), "{error}");
    }
    for address in ["unix:///s", "unix:/s", "/s"] {
        assert_eq!(Place::parse(address).expect("an address"), Place::Unix("/s".into()));
    }
    assert_eq!(Place::parse("[::1]:5").expect("an address"), Place::Plain("[::1]:5".into()));
    assert_eq!(Place::parse("https://h:5/").expect("an address"), Place::Tls("h:5".into()));
}

#[test]
fn a_file_that_is_wanted_and_missing_is_named() {
    let folder = Folder::new();
    let given = Connection::new().address("https://h:1").tls_ca("/no/ca.pem");
    let error = folder.resolve(&given, &[]).err().expect("no target");
    assert!(error.to_string().contains("/no/ca.pem"), "{error}");
    let half = [("SESSIOND_TLS_CERT", "/cert.pem")];
    let error = folder.resolve(&Connection::new().address("https://h:1"), &half).err().expect("no key");
    assert!(error.to_string().contains("give both"), "{error}");
}

#[test]
fn a_token_file_is_read_for_every_call() {
    let folder = Folder::new();
    let path = folder.0.join("token");
    let mut credentials = Credentials(Token::File(path.clone()));
    let missing = credentials.call(Request::new(())).expect_err("no file");
    assert_eq!(missing.code(), tonic::Code::Unauthenticated);
    for token in ["one", "two"] {
        fs::write(&path, format!(" {token} \n")).expect("a token file");
        let request = credentials.call(Request::new(())).expect("a request");
        let sent = request.metadata().get("authorization").expect("a token");
        assert_eq!(sent, &format!("Bearer {token}"));
    }
}

#[test]
fn no_token_is_printed() {
    let text = format!("{:?}", Connection::new().token("secret"));
    assert!(!text.contains("secret"), "{text}");
}

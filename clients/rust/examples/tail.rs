//! Prints a session's events, one line of JSON each: the history, then what happens.

use std::{env, error, fmt, io::Write, process::ExitCode};

use serde_json::{Value, json};
use sessiond_client::{
    Client, Connection, Error, SubscribeOptions,
    v1::{CreateSessionRequest, Event, GetServerInfoRequest, SendRequest},
};
use tokio::signal::unix::{SignalKind, signal};

#[path = "support/mod.rs"]
mod support;

const USAGE: &str = "usage: tail [--address ADDR] [--token-file FILE] [--tls-ca FILE]
            [--session ID | --new [--driver NAME] [--workspace DIR]]
            [--after N] [--send TEXT] [--count N]";

#[derive(Default)]
struct Options {
    connection: Connection,
    session: Option<String>,
    new: bool,
    driver: Option<String>,
    workspace: Option<String>,
    after: i64,
    send: Option<String>,
    count: Option<u64>,
}

impl Options {
    /// `None`: it is help that is asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        while let Some(flag) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{flag} needs a value"));
            let number = |text: String, least: i64| match text.parse() {
                Ok(number) if number >= least => Ok(number),
                _ => Err(format!("{flag}: {text:?} is no number from {least} on")),
            };
            let connection = options.connection.clone();
            match flag.as_str() {
                "--address" => options.connection = connection.address(value()?),
                "--token-file" => options.connection = connection.token_file(value()?),
                "--tls-ca" => options.connection = connection.tls_ca(value()?),
                "--session" => options.session = Some(value()?),
                "--new" => options.new = true,
                "--driver" => options.driver = Some(value()?),
                "--workspace" => options.workspace = Some(value()?),
                "--after" => options.after = number(value()?, 0)?,
                "--send" => options.send = Some(value()?),
                "--count" => options.count = Some(number(value()?, 1)?.unsigned_abs()),
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("there is no {flag}")),
            }
        }
        if options.new == options.session.is_some() {
            return Err("either --session or --new is required".into());
        }
        Ok(Some(options))
    }
}

/// What ends the program before the events do.
enum Failure {
    Usage(String),
    Call(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

fn usage(why: impl fmt::Display) -> Failure {
    Failure::Usage(why.to_string())
}

fn refused(why: &str) -> ExitCode {
    eprintln!("tail: {why}\n{USAGE}");
    ExitCode::from(2)
}

fn print(line: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever read this has gone: there is nobody left to tell.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn event_line(event: &Event) -> Value {
    let mut line = json!({"seq": event.seq.to_string(), "kind": event.kind()});
    if let Some(text) = support::text(event) {
        line["text"] = text.into();
    }
    line
}

async fn session(client: &Client, options: &Options) -> Result<String, Failure> {
    if let Some(session) = &options.session {
        return Ok(session.clone());
    }
    let here = || env::current_dir().map(|folder| folder.display().to_string()).map_err(usage);
    let request = CreateSessionRequest {
        driver: options.driver.clone().unwrap_or_else(|| "echo".into()),
        workspace: options.workspace.clone().map_or_else(here, Ok)?,
        ..CreateSessionRequest::default()
    };
    let response = client.retry(request).send().await?;
    Ok(response.session.unwrap_or_default().session_id)
}

async fn tail(options: Options) -> Result<&'static str, Failure> {
    let client = Client::connect(&options.connection).map_err(usage)?;
    // A server that is not there is told at once: a subscription would wait for it.
    client.call(GetServerInfoRequest {}).await?;
    let session_id = session(&client, &options).await?;
    if let Some(text) = options.send {
        let request = SendRequest { session_id: session_id.clone(), text, ..SendRequest::default() };
        client.retry(request).send().await?;
    }
    let wanted = options.count.unwrap_or(u64::MAX);
    let mut events = client.subscribe(session_id, SubscribeOptions::new().after_seq(options.after));
    for _ in 0..wanted {
        match events.next().await? {
            Some(event) => print(&event_line(&event)),
            None => return Ok("OK"),
        }
    }
    Ok("DONE")
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn error::Error>> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let options = match Options::parse(env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(why) => return Ok(refused(&why)),
    };
    let end = tokio::select! {
        end = tail(options) => end,
        _ = interrupted.recv() => Ok("CANCELLED"),
        _ = terminated.recv() => Ok("CANCELLED"),
    };
    Ok(match end {
        Ok(end) => {
            print(&json!({"end": end}));
            ExitCode::SUCCESS
        }
        Err(Failure::Usage(why)) => refused(&why),
        Err(Failure::Call(error)) => {
            let end = support::code_name(error.code());
            print(&json!({"end": end, "error": support::error_to_json(&error)}));
            ExitCode::FAILURE
        }
    })
}

//! Carries out a document of steps and reports what came of each, in JSON: the subject of the
//! conformance suite. Its language is described in `tests/clients/README.md`.

use std::{env, fs, io, io::Write, process::ExitCode, time::Instant};

use serde_json::{Map, Value, json};
use sessiond_client::{Client, Connection};

mod calls;
mod content;
mod steps;
mod watch;

#[path = "../support/mod.rs"]
mod support;

/// The document can't be carried out; the text says why.
type Refused = String;

/// Prints one line of JSON, at once.
fn print(line: &Value) -> Result<(), Refused> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| error.to_string())
}

fn connection(document: &Value) -> Connection {
    let mut connection = Connection::new();
    let given = |key: &str| {
        let text = document["connection"][key].as_str().unwrap_or_default();
        Some(text.to_owned()).filter(|text| !text.is_empty())
    };
    if let Some(address) = given("address") {
        connection = connection.address(address);
    }
    if let Some(token) = given("token") {
        connection = connection.token(token);
    }
    if let Some(path) = given("token_file") {
        connection = connection.token_file(path);
    }
    if let Some(path) = given("tls_ca") {
        connection = connection.tls_ca(path);
    }
    connection
}

async fn carry_out(document: &Value) -> Result<Value, Refused> {
    let client = Client::connect(&connection(document)).map_err(|error| error.to_string())?;
    let mut results = Map::new();
    for step in document["steps"].as_array().ok_or("there are no steps")? {
        let step = steps::Step::new(steps::resolved(step, &results)?);
        let id = step.required("id")?.to_owned();
        let started = Instant::now();
        let mut result = steps::run(&client, &step).await?;
        result.insert(
            "elapsed_ms".into(),
            json!(u64::try_from(started.elapsed().as_millis()).unwrap_or(0)),
        );
        results.insert(id, result.into());
    }
    Ok(json!({"results": results}))
}

async fn run() -> Result<(), Refused> {
    let text = match env::args().nth(1) {
        Some(path) => fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?,
        None => io::read_to_string(io::stdin()).map_err(|error| error.to_string())?,
    };
    let document = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    print(&carry_out(&document).await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("conformance: {why}");
            ExitCode::FAILURE
        }
    }
}

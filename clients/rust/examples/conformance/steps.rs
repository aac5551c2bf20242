//! One step of a document, and which action it asks for.

use std::{str::FromStr, time::Duration};

use serde_json::{Map, Value, json};
use sessiond_client::Client;

use crate::{Refused, calls, content, watch};

/// What came of a step.
pub type Outcome = Map<String, Value>;

/// Makes an [`Outcome`] of an object.
pub fn outcome(value: Value) -> Outcome {
    match value {
        Value::Object(object) => object,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// A step whose references are resolved.
pub struct Step(Value);

impl Step {
    /// A step as it stands in the document.
    pub fn new(value: Value) -> Self {
        Self(value)
    }

    /// The value of a key; null when it is not there.
    pub fn get(&self, key: &str) -> &Value {
        &self.0[key]
    }

    /// A text; empty when it is not there.
    pub fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    /// A text that must be there.
    pub fn required(&self, key: &str) -> Result<&str, Refused> {
        self.0[key].as_str().ok_or_else(|| format!("{key:?} is missing in {}", self.0))
    }

    /// A number, whether it is written as a number or as a text.
    pub fn number<T: FromStr>(&self, key: &str, default: T) -> Result<T, Refused> {
        number(&self.0[key], key).map(|number| number.unwrap_or(default))
    }

    /// A span of milliseconds.
    pub fn millis(&self, key: &str, default: u64) -> Result<Duration, Refused> {
        self.number(key, default).map(Duration::from_millis)
    }
}

/// A number, whether it is written as a number or as a text; none when it is not there.
pub fn number<T: FromStr>(value: &Value, key: &str) -> Result<Option<T>, Refused> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.parse().map(Some).map_err(|_| format!("{key}: {text:?} is not such a number"))
}

/// Carries out one step.
pub async fn run(client: &Client, step: &Step) -> Result<Outcome, Refused> {
    match step.required("do")? {
        "call" => calls::call(client, step).await,
        "subscribe" => watch::subscribe(client, step).await,
        "upload" => content::upload(client, step).await,
        "download" => content::download(client, step).await,
        "sleep" => {
            tokio::time::sleep(step.millis("ms", 0)?).await;
            Ok(outcome(json!({})))
        }
        other => Err(format!("there is no action {other:?}")),
    }
}

/// The value with every `$path` replaced by what stands there in the results so far.
pub fn resolved(value: &Value, results: &Map<String, Value>) -> Result<Value, Refused> {
    Ok(match value {
        Value::String(text) if text.starts_with('$') => look_up(&text[1..], results)?,
        Value::Array(items) => {
            items.iter().map(|item| resolved(item, results)).collect::<Result<Vec<_>, _>>()?.into()
        }
        Value::Object(object) => object
            .iter()
            .map(|(key, value)| Ok((key.clone(), resolved(value, results)?)))
            .collect::<Result<Map<_, _>, Refused>>()?
            .into(),
        other => other.clone(),
    })
}

fn look_up(path: &str, results: &Map<String, Value>) -> Result<Value, Refused> {
    let nothing = || format!("there is no {path:?} in the results so far");
    let mut parts = path.split('.');
    let first = parts.next().unwrap_or_default();
    let mut value = results.get(first).ok_or_else(nothing)?;
    for part in parts {
        let next = match value {
            Value::Array(items) => part.parse::<usize>().ok().and_then(|index| items.get(index)),
            other => other.get(part),
        };
        value = next.ok_or_else(nothing)?;
    }
    Ok(value.clone())
}

//! The action `call`.

use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};
use sessiond_client::{Call, Client, Error, Mutation, v1};

use crate::{
    Refused,
    steps::{Outcome, Step, outcome},
    support,
};

struct Plan<'a> {
    method: &'a str,
    request: Value,
    deadline: Duration,
    retry: bool,
}

impl Plan<'_> {
    fn request<R: Message + Default>(&self) -> Result<R, Refused> {
        support::message_from_json(&format!("{}Request", self.method), &self.request)
    }

    fn answer<M: Message>(&self, answer: &Result<M, Error>) -> Outcome {
        let name = format!("{}Response", self.method);
        outcome(match answer {
            Ok(response) => json!({"response": support::message_to_json(&name, response)}),
            Err(error) => json!({"error": support::error_to_json(error)}),
        })
    }

    async fn once<R>(&self, client: &Client) -> Result<Outcome, Refused>
    where
        R: Call + Message + Default,
        R::Response: Message,
    {
        let request: R = self.request()?;
        Ok(self.answer(&client.call_within(self.deadline, request).await))
    }

    async fn mutation<R>(&self, client: &Client) -> Result<Outcome, Refused>
    where
        R: Mutation + Message + Default,
        R::Response: Message,
    {
        if !self.retry {
            return self.once::<R>(client).await;
        }
        let request: R = self.request()?;
        let mut call = client.retry(request).deadline(self.deadline);
        let mut result = self.answer(&call.send().await);
        result.insert("attempts".into(), call.attempts().into());
        Ok(result)
    }
}

pub async fn call(client: &Client, step: &Step) -> Result<Outcome, Refused> {
    let plan = Plan {
        method: step.required("method")?,
        request: Some(step.get("request").clone()).filter(Value::is_object).unwrap_or_else(|| json!({})),
        deadline: step.millis("deadline_ms", 30_000)?,
        retry: step.get("retry").as_bool().unwrap_or(false),
    };
    match plan.method {
        "CreateSession" => plan.mutation::<v1::CreateSessionRequest>(client).await,
        "GetSession" => plan.once::<v1::GetSessionRequest>(client).await,
        "ListSessions" => plan.once::<v1::ListSessionsRequest>(client).await,
        "UpdateSession" => plan.mutation::<v1::UpdateSessionRequest>(client).await,
        "DeleteSession" => plan.mutation::<v1::DeleteSessionRequest>(client).await,
        "ListEvents" => plan.once::<v1::ListEventsRequest>(client).await,
        "Send" => plan.mutation::<v1::SendRequest>(client).await,
        "EditMessage" => plan.mutation::<v1::EditMessageRequest>(client).await,
        "MoveMessage" => plan.mutation::<v1::MoveMessageRequest>(client).await,
        "Unqueue" => plan.mutation::<v1::UnqueueRequest>(client).await,
        "Answer" => plan.mutation::<v1::AnswerRequest>(client).await,
        "Control" => plan.mutation::<v1::ControlRequest>(client).await,
        "WriteAttachment" => plan.once::<v1::WriteAttachmentRequest>(client).await,
        "GetAttachment" => plan.once::<v1::GetAttachmentRequest>(client).await,
        "GetServerInfo" => plan.once::<v1::GetServerInfoRequest>(client).await,
        other => Err(format!("there is no method {other:?}")),
    }
}

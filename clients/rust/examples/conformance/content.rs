//! The actions `upload` and `download`.

use serde_json::json;
use sessiond_client::{Client, Upload};
use sha2::{Digest, Sha256};

use crate::{
    Refused,
    steps::{Outcome, Step, outcome},
    support,
};

/// The digest of some content, in hexadecimal digits.
pub fn sha256(digest: Sha256) -> String {
    format!("{:x}", digest.finalize())
}

pub async fn upload(client: &Client, step: &Step) -> Result<Outcome, Refused> {
    let size: u32 = step.number("size", 0)?;
    let chunk_bytes: usize = step.number("chunk_bytes", 262_144)?;
    let upload = Upload {
        data: (0..size).map(|i| (i % 251).to_le_bytes()[0]).collect(),
        media_type: step.text("media_type").to_owned(),
        filename: step.text("filename").to_owned(),
        chunk_bytes,
    };
    let chunks = upload.data.len().div_ceil(chunk_bytes).max(1);
    Ok(outcome(match client.upload(step.required("session_id")?, &upload).await {
        Ok(attachment) => json!({
            "ref": attachment.r#ref,
            "size_bytes": attachment.size_bytes.to_string(),
            "chunks": chunks,
        }),
        Err(error) => json!({"error": support::error_to_json(&error)}),
    }))
}

pub async fn download(client: &Client, step: &Step) -> Result<Outcome, Refused> {
    let answer = client.download(step.required("session_id")?, step.required("ref")?).await;
    Ok(outcome(match answer {
        Ok(download) => json!({
            "size_bytes": download.data.len().to_string(),
            "sha256": sha256(Sha256::new_with_prefix(&download.data)),
            "chunks": download.chunks,
        }),
        Err(error) => json!({"error": support::error_to_json(&error)}),
    }))
}

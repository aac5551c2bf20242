#![doc = include_str!("../README.md")]

mod attachments;
mod backoff;
mod call;
mod client;
mod connection;
mod error;
mod kind;
mod subscription;

/// The messages and the generated clients of the contract, `sessiond.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod v1 {
    tonic::include_proto!("sessiond.v1");
}

pub use attachments::{Download, MAX_CHUNK_BYTES, Upload};
pub use call::{Call, Mutation, Retry, new_request_id};
pub use client::{Client, DEFAULT_DEADLINE, Service};
pub use connection::{Connection, ConnectionError, Credentials};
pub use error::{Error, Violation};
pub use subscription::{SubscribeOptions, Subscription};
pub use tonic::Code;

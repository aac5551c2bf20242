use std::{fmt::Write, time::Duration};

use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tonic::Code;

use crate::{
    Client, Error,
    backoff::Backoff,
    new_request_id,
    v1::{Attachment, ReadAttachmentRequest, WriteAttachmentRequest},
};

/// The largest chunk that is sent.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;

const ATTEMPTS: u32 = 5;

/// What to upload.
#[derive(Clone, Debug, Default)]
pub struct Upload {
    /// The content.
    pub data: Vec<u8>,
    /// `image/png`, `text/plain`...
    pub media_type: String,
    /// A name for people.
    pub filename: String,
    /// How much goes with one call, at most [`MAX_CHUNK_BYTES`]; 0 is 256 KiB.
    pub chunk_bytes: usize,
}

/// What was downloaded.
#[derive(Clone, Debug)]
pub struct Download {
    /// The content, checked against its ref.
    pub data: Vec<u8>,
    /// In how many pieces it came.
    pub chunks: u64,
}

impl Client {
    /// Uploads an attachment for the messages of a session, chunk by chunk; a chunk that found no
    /// server is sent again. Its `ref` goes into a message's `attachment_refs`.
    ///
    /// # Errors
    /// What the server answered to a chunk, `ATTACHMENT_TOO_LARGE` for one.
    pub async fn upload(&self, session_id: &str, upload: &Upload) -> Result<Attachment, Error> {
        let size = match upload.chunk_bytes {
            0 => MAX_CHUNK_BYTES / 4,
            size => size.min(MAX_CHUNK_BYTES),
        };
        let upload_id = new_request_id();
        let mut offset = 0;
        loop {
            let end = upload.data.len().min(offset + size);
            let finish = end == upload.data.len();
            let mut request = WriteAttachmentRequest {
                session_id: session_id.to_owned(),
                upload_id: upload_id.clone(),
                offset: position(offset),
                data: upload.data[offset..end].to_vec(),
                finish,
                ..WriteAttachmentRequest::default()
            };
            if finish {
                request.sha256 = hex(&Sha256::digest(&upload.data));
                request.media_type.clone_from(&upload.media_type);
                request.filename.clone_from(&upload.filename);
            }
            let response = self.write_chunk(request).await?;
            if finish {
                let missing = || Error::new(Code::Internal, "the server named no attachment");
                return response.ok_or_else(missing);
            }
            offset = end;
        }
    }

    async fn write_chunk(&self, request: WriteAttachmentRequest) -> Result<Option<Attachment>, Error> {
        let mut patience = Patience::default();
        loop {
            match self.call(request.clone()).await {
                Ok(response) => return Ok(response.attachment),
                Err(error) => patience.wait(error).await?,
            }
        }
    }

    /// Downloads an attachment, going on where it was when the connection is cut.
    ///
    /// # Errors
    /// `ATTACHMENT_NOT_FOUND`, or `DataLoss` when the content is not what the ref says.
    pub async fn download(&self, session_id: &str, reference: &str) -> Result<Download, Error> {
        let mut download = Download { data: Vec::new(), chunks: 0 };
        let mut patience = Patience::default();
        while let Err(error) = self.read(session_id, reference, &mut download, &mut patience).await {
            patience.wait(error).await?;
        }
        if hex(&Sha256::digest(&download.data)) == reference {
            return Ok(download);
        }
        Err(Error::new(Code::DataLoss, format!("the content is not that of {reference}")))
    }

    async fn read(
        &self,
        session_id: &str,
        reference: &str,
        download: &mut Download,
        patience: &mut Patience,
    ) -> Result<(), Error> {
        let request = ReadAttachmentRequest {
            session_id: session_id.to_owned(),
            r#ref: reference.to_owned(),
            offset: position(download.data.len()),
        };
        let mut stream = self.attachments().read_attachment(request).await?.into_inner();
        while let Some(response) = stream.message().await? {
            *patience = Patience::default();
            download.data.extend_from_slice(&response.data);
            download.chunks += 1;
        }
        Ok(())
    }
}

/// Waits a few times for a server that can't be reached.
#[derive(Default)]
struct Patience {
    backoff: Backoff,
    attempts: u32,
}

impl Patience {
    async fn wait(&mut self, error: Error) -> Result<(), Error> {
        self.attempts += 1;
        if error.code() != Code::Unavailable || self.attempts >= ATTEMPTS {
            return Err(error);
        }
        let wait: Duration = self.backoff.next(error.retry_delay());
        sleep(wait).await;
        Ok(())
    }
}

fn position(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

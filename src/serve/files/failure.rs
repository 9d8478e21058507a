//! What the file store refuses, as an answer.

use axum::http::StatusCode;

use crate::{
    journal::files::store::FileError,
    model::envelope::{Envelope, ErrorCode},
    runtime::journal::JournalError,
    serve::answer::{body::too_large, failure::Failure},
};

/// Seconds after which a disk is worth another try.
const DISK_RETRY_AFTER: f64 = 5.0;

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::TooLarge { bytes_max } => too_large(bytes_max),
            FileError::TooMany => {
                Self::with_status(ErrorCode::QuotaSpent, StatusCode::PAYMENT_REQUIRED, error.to_string())
            }
            FileError::Busy => Self::busy("uploads"),
            FileError::NoPicture(why) => Self::invalid(why),
            FileError::Journal(error) => of_journal(&error),
        }
    }
}

/// The journal cannot take or give something: nothing was stored, and another try later may do.
pub fn of_journal(error: &JournalError) -> Failure {
    let mut envelope = Envelope::new(ErrorCode::Internal, error.to_string()).with_retry_after(DISK_RETRY_AFTER);
    envelope.http_status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
    envelope.retryable = true;
    envelope.with_detail("reason", "journal").into()
}

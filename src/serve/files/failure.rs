//! What the file store refuses, as an answer.

use axum::http::StatusCode;

use crate::{
    journal::files::store::FileError,
    model::envelope::ErrorCode,
    serve::answer::{body::too_large, failure::Failure},
};

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        match error {
            FileError::TooLarge { bytes_max } => too_large(bytes_max),
            FileError::TooMany => {
                Self::with_status(ErrorCode::QuotaSpent, StatusCode::PAYMENT_REQUIRED, error.to_string())
            }
            FileError::Busy => Self::busy("uploads"),
            FileError::NoPicture(why) => Self::invalid(why),
            FileError::Journal(error) => error.into(),
        }
    }
}

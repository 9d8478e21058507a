//! Short-lived signatures: who holds one may do one thing with one object until a moment. Nothing is stored; a signature is checked by
//! making it again. Says nothing of who gets one.

use std::{
    io::{self, Write as _},
    path::Path,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use super::random::random_bytes;

/// Bytes of the secret: one block of the hash, more would be hashed down (RFC 2104, section 2).
const SECRET_BYTES: usize = 64;

/// What a signature is good for: one of another purpose is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To read the bytes of one file.
    ReadFile,
    /// To read events and result of one run.
    WatchRun,
}

impl Purpose {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ReadFile => "read-file",
            Self::WatchRun => "watch-run",
        }
    }
}

/// Makes and checks signatures. The secret is never shown.
#[derive(Clone)]
pub struct Signer {
    secret: [u8; SECRET_BYTES],
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Signer")
    }
}

impl Signer {
    /// A signer whose signatures end with this process.
    pub fn of_chance() -> io::Result<Self> {
        Ok(Self { secret: random_bytes()? })
    }

    /// The signer whose secret is in a file, which only its owner can read; made if it is not there. Blocks for a moment.
    pub fn kept_at(path: &Path) -> io::Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => {
                let secret = bytes.try_into().map_err(|_| {
                    let message =
                        format!("{}: must hold {SECRET_BYTES} bytes; delete it to have a new one", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, message)
                })?;
                Ok(Self { secret })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let signer = Self::of_chance()?;
                signer.keep(path)?;
                // Of two that began together, the file's word holds.
                std::fs::read(path)?.try_into().map_or(Ok(signer), |secret| Ok(Self { secret }))
            }
            Err(error) => Err(error),
        }
    }

    fn keep(&self, path: &Path) -> io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(path) {
            Ok(mut file) => file.write_all(&self.secret).and_then(|()| file.sync_all()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A signature for `subject`, good until `expires_ms` (Unix milliseconds). Safe in URLs and headers.
    pub fn sign(&self, purpose: Purpose, subject: &str, expires_ms: u64) -> String {
        let code = self.code(purpose, subject, expires_ms).finalize().into_bytes();
        format!("{expires_ms:x}.{}", URL_SAFE_NO_PAD.encode(code))
    }

    /// Whether `signature` is ours, for this purpose and subject, and still good. Takes the same time wherever it differs.
    pub fn allows(&self, purpose: Purpose, subject: &str, signature: &str, now_ms: u64) -> bool {
        let Some((expires, code)) = signature.split_once('.') else { return false };
        let (Ok(expires_ms), Ok(code)) = (u64::from_str_radix(expires, 16), URL_SAFE_NO_PAD.decode(code)) else {
            return false;
        };
        expires_ms > now_ms && self.code(purpose, subject, expires_ms).verify_slice(&code).is_ok()
    }

    fn code(&self, purpose: Purpose, subject: &str, expires_ms: u64) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new(&self.secret.into());
        // Lengths first: no two triples read the same.
        for part in [purpose.as_str(), subject] {
            code.update(&(part.len() as u64).to_be_bytes());
            code.update(part.as_bytes());
        }
        code.update(&expires_ms.to_be_bytes());
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_good_for_one_thing_until_its_time() {
        let signer = Signer::of_chance().unwrap();
        let good = signer.sign(Purpose::WatchRun, "run-1", 1_000);
        for (purpose, subject, signature, now_ms, want) in [
            (Purpose::WatchRun, "run-1", good.as_str(), 999, true),
            (Purpose::WatchRun, "run-1", &good, 1_000, false),
            (Purpose::WatchRun, "run-2", &good, 0, false),
            (Purpose::ReadFile, "run-1", &good, 0, false),
            (Purpose::WatchRun, "run-1", &good[..good.len() - 1], 0, false),
            (Purpose::WatchRun, "run-1", &good.replacen("3e8", "fffffff", 1), 0, false),
            (Purpose::WatchRun, "run-1", "", 0, false),
            (Purpose::WatchRun, "run-1", "3e8.", 0, false),
            (Purpose::WatchRun, "run-1", "x.y", 0, false),
        ] {
            assert_eq!(
                signer.allows(purpose, subject, signature, now_ms),
                want,
                "{purpose:?} {subject} {signature} {now_ms}"
            );
        }
        assert!(!Signer::of_chance().unwrap().allows(Purpose::WatchRun, "run-1", &good, 0), "another secret");
    }

    #[test]
    fn a_kept_secret_outlives_its_process_and_nobody_else_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        let signature = Signer::kept_at(&path).unwrap().sign(Purpose::ReadFile, "f", 9);
        assert!(Signer::kept_at(&path).unwrap().allows(Purpose::ReadFile, "f", &signature, 8));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::write(&path, "short").unwrap();
        assert!(Signer::kept_at(&path).unwrap_err().to_string().contains("must hold 64 bytes"));
    }
}

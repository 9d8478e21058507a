//! Files on their way to an agent: an input names them by id, and each attempt is given a way to their bytes. Whoever works on this
//! machine gets a path, others a URL that is signed for as long as the attempt may last, a model that sees a smaller copy without EXIF.
//! The journal keeps the input as it was.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Map, Value};

use super::{input, routes::unix_ms};
use crate::{
    journal::{
        files::{
            store::{FileError, FileStore},
            table::StoredFile,
        },
        query::TenantScope,
    },
    model::{
        facts::Ending,
        reply::{AttemptFailure, Reply},
    },
    runtime::ports::{AttemptRequest, Backend, BoxFuture, Progress},
    serve::access::signature::{Purpose, Signer},
};

/// Text of small text files goes along with them, up to this size.
const TEXT_BYTES_MAX: u64 = 256 * 1024;
/// A signed URL outlives its attempt by this much: clocks and queues differ.
const URL_SPARE: Duration = Duration::from_secs(60);

/// How an agent reaches files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It shares this disk.
    Path,
    /// It may share this disk or not, and reaches this service at that address.
    PathAndUrl(String),
    /// It reaches this service at that address.
    Url(String),
    /// It is a model that sees: pictures go to it as they are asked for, their longer side at most so many pixels.
    Sees {
        /// In pixels.
        side_max: u32,
    },
}

/// An agent whose inputs may name files.
pub struct WithFiles {
    inner: Arc<dyn Backend>,
    files: Arc<FileStore>,
    signer: Signer,
    reach: Reach,
}

impl WithFiles {
    /// `inner`, given files in the way of `reach`.
    pub fn new(inner: Arc<dyn Backend>, files: Arc<FileStore>, signer: Signer, reach: Reach) -> Self {
        Self { inner, files, signer, reach }
    }

    async fn prepared(&self, request: &AttemptRequest) -> Result<Option<AttemptRequest>, AttemptFailure> {
        let ids = input::ids_within(&request.input);
        // An agent on this machine would read any path that a caller writes down: only those of files that were sent go to it.
        let reads_here = matches!(self.reach, Reach::Path | Reach::PathAndUrl(_));
        if ids.is_empty() && !reads_here {
            return Ok(None);
        }
        let scope = TenantScope::One(request.tenant.clone());
        let mut ways = HashMap::new();
        for id in ids {
            let found = self.files.file(scope.clone(), &id).await.map_err(|error| failed(&error))?;
            let file = found.ok_or_else(|| refused(format!("file {id:?} is not there")))?;
            ways.insert(id, self.way_to(&file, &scope, request.deadline).await?);
        }
        let given = Value::clone(&request.input);
        let given = if reads_here { input::without_paths(given) } else { given };
        let input = input::with_files(&given, &|file: &mut Map<String, Value>| {
            let way = input::id_of(file).and_then(|id| ways.get(id)).cloned();
            file.extend(way.unwrap_or_default());
        });
        Ok(Some(AttemptRequest { input: Arc::new(input), ..request.clone() }))
    }

    /// The fields that lead to a file's bytes.
    async fn way_to(
        &self,
        file: &StoredFile,
        scope: &TenantScope,
        deadline: Duration,
    ) -> Result<Map<String, Value>, AttemptFailure> {
        let mut way = Map::new();
        if let Some(text) = self.text_of(file).await {
            way.insert("text".to_owned(), Value::from(text));
        }
        let path = || Value::from(self.files.path(file).to_string_lossy());
        let url = |address: &str| {
            let good_for = u64::try_from(deadline.saturating_add(URL_SPARE).as_millis()).unwrap_or(u64::MAX);
            let signature = self.signer.sign(Purpose::ReadFile, &file.id, unix_ms().saturating_add(good_for));
            Value::from(format!("{address}/v1/files/{}?signature={signature}", file.id))
        };
        match &self.reach {
            Reach::Path => {
                way.insert("path".to_owned(), path());
            }
            Reach::PathAndUrl(address) => {
                way.insert("path".to_owned(), path());
                way.insert("url".to_owned(), url(address));
            }
            Reach::Url(address) => {
                way.insert("url".to_owned(), url(address));
            }
            Reach::Sees { side_max } => {
                if let Some(picture) = self.picture_of(file, scope, *side_max).await? {
                    way.insert("image_url".to_owned(), Value::from(picture));
                }
            }
        }
        Ok(way)
    }

    /// The text of a small text file.
    async fn text_of(&self, file: &StoredFile) -> Option<String> {
        if !file.media_type.starts_with("text/") || file.bytes > TEXT_BYTES_MAX {
            return None;
        }
        tokio::fs::read_to_string(self.files.path(file)).await.ok()
    }

    /// A picture as a data URL; `None` for what is no picture.
    async fn picture_of(
        &self,
        file: &StoredFile,
        scope: &TenantScope,
        side_max: u32,
    ) -> Result<Option<String>, AttemptFailure> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        if !file.media_type.starts_with("image/") {
            return Ok(None);
        }
        let copy = match self.files.resized(scope.clone(), &file.id, side_max).await {
            Ok(Some(copy)) => copy,
            Ok(None) => return Err(refused(format!("file {:?} is not there", file.id))),
            Err(FileError::NoPicture(why)) => return Err(refused(format!("{}: {why}", file.name))),
            Err(error) => return Err(failed(&error)),
        };
        let bytes = tokio::fs::read(&copy.path).await.map_err(|error| failed(&error))?;
        Ok(Some(format!("data:{};base64,{}", copy.media_type, STANDARD.encode(bytes))))
    }
}

impl Backend for WithFiles {
    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.inner)
    }

    fn attempt<'a>(
        &'a self,
        request: &'a AttemptRequest,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Reply, AttemptFailure>> {
        Box::pin(async move {
            match self.prepared(request).await? {
                Some(prepared) => self.inner.attempt(&prepared, progress).await,
                None => self.inner.attempt(request, progress).await,
            }
        })
    }

    fn refuses<'a>(&'a self, request: &'a AttemptRequest) -> BoxFuture<'a, Option<AttemptFailure>> {
        Box::pin(async move {
            match self.prepared(request).await {
                Ok(Some(prepared)) => self.inner.refuses(&prepared).await,
                Ok(None) => self.inner.refuses(request).await,
                Err(failure) => Some(failure),
            }
        })
    }
}

/// The input names something that cannot be used: no agent is to blame, and no other try helps.
fn refused(why: String) -> AttemptFailure {
    let ending = Ending::Status {
        status: 422,
        retryable: Some(false),
        content_filter: false,
        context_too_long: false,
        quota_spent: None,
    };
    let mut failure = AttemptFailure::new(ending, why);
    failure.status = Some(422);
    failure.upstream_code = Some("INVALID_INPUT".to_owned());
    failure
}

/// Our own disk failed: a fault of ours, which no breaker learns from.
fn failed(error: &dyn std::fmt::Display) -> AttemptFailure {
    AttemptFailure::new(Ending::Internal, format!("a file cannot be given to the agent: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        journal::{files::store::FileSettings, journal::SqliteJournal, settings::JournalSettings},
        runtime::outside::OutsideBackend,
        transport::test_attempt::request,
    };

    #[tokio::test]
    async fn no_agent_on_this_machine_is_given_a_path_that_a_caller_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
        let files = Arc::new(FileStore::new(journal, FileSettings::default()));
        let mut upload = files.upload(None, "a.txt").await.unwrap();
        upload.write(b"a").await.unwrap();
        let sent = upload.finish().await.unwrap();
        let path = files.path(&sent).to_string_lossy().into_owned();
        let strange = json!({ "photos": [{ "path": "/etc/passwd", "name": "x" }], "path": "/etc" });
        let mixed = json!({ "photos": [{ "path": "/etc/passwd" }, { "file_id": sent.id, "path": "/etc/passwd" }] });
        let url = "http://127.0.0.1:7800".to_owned();
        for (reach, reads_here) in
            [(Reach::Path, true), (Reach::PathAndUrl(url.clone()), true), (Reach::Url(url), false)]
        {
            let backend =
                WithFiles::new(Arc::new(OutsideBackend), Arc::clone(&files), Signer::of_chance().unwrap(), reach);
            let prepared = async |input: &Value| {
                let asked = AttemptRequest { tenant: None, ..request(input.clone()) };
                let prepared = backend.prepared(&asked).await.unwrap();
                prepared.map_or_else(|| input.clone(), |prepared| Value::clone(&prepared.input))
            };
            let given = prepared(&strange).await;
            assert_eq!((given["photos"][0]["name"].as_str(), given == strange), (Some("x"), !reads_here));
            assert_eq!(given.to_string().contains("/etc"), !reads_here, "{given}");
            let given = prepared(&mixed).await;
            assert_eq!(given["photos"][1]["path"] == path.as_str(), reads_here, "{given}");
        }
    }
}

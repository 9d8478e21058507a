//! Files on their way to an agent: an input names them by id, and each attempt is given a way to their bytes. Whoever works on this
//! machine gets a path, others a URL that is signed for as long as the attempt may last, a model that sees a smaller copy without EXIF.
//! The journal keeps the input as it was, and so does what is no file of ours or of this tenant's.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Map, Value};

use super::{
    input::{self, Named},
    routes::unix_ms,
};
use crate::{
    journal::{
        files::{
            store::{FileError, FileStore, PictureCopy},
            table::StoredFile,
            way_room::{NoWayRoom, WayPlace},
        },
        query::TenantScope,
    },
    model::{
        facts::Ending,
        file_id::FILE_PATH,
        reply::{AttemptFailure, Reply},
        weight,
    },
    runtime::{
        large_work,
        ports::{AttemptRequest, Backend, BoxFuture, Progress},
    },
    serve::access::signature::{Purpose, Signer},
};

/// Text of small text files goes along with them, up to this size.
const TEXT_BYTES_MAX: u64 = 256 * 1024;
/// A signed URL outlives its attempt by this much: clocks and queues differ.
const URL_SPARE: Duration = Duration::from_secs(60);
/// So long an attempt waits for room for its files, but no more than half of what is left of it: time of ours is not the agent's.
const ROOM_WAIT: Duration = Duration::from_secs(1);

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

    /// `None` where the input names no file. What files bring along is counted before any of it is read.
    async fn prepared(&self, request: &AttemptRequest) -> Result<Option<Prepared>, AttemptFailure> {
        let named = Named::within(&request.input);
        if named.ids.is_empty() {
            return Ok(None);
        }
        let scope = TenantScope::One(request.tenant.clone());
        let found = self.files.files(&scope, &named.ids).await.map_err(|error| failed(&error))?;
        let (mut ways, mut bytes) = (HashMap::new(), 0_u64);
        for (id, file) in &found {
            let way = self.way_to(file, &scope, request.deadline).await?;
            let times = named.times.get(id).map_or(0, |times| *times as u64);
            bytes = bytes.saturating_add(way.bytes.saturating_mul(times));
            ways.insert(id.clone(), way);
        }
        let place = self.place(bytes, request.deadline).await?;
        let mut read = HashMap::new();
        for (id, way) in ways {
            read.insert(id, way.read().await?);
        }
        let cost = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(weight::of_value(&request.input));
        let (asked, times) = (Arc::clone(&request.input), named.times);
        let input = large_work::work(cost, move || Ok(filled(&asked, read, times))).await?;
        Ok(Some(Prepared { request: AttemptRequest { input: Arc::new(input), ..request.clone() }, place }))
    }

    /// Room for what the files of one input bring along.
    async fn place(&self, bytes: u64, deadline: Duration) -> Result<WayPlace, AttemptFailure> {
        self.files.way_room(bytes, ROOM_WAIT.min(deadline / 2)).await.map_err(|none| match none {
            NoWayRoom::Never(max) => {
                refused(format!("the input's files bring {bytes} bytes along; files.call_bytes_max is {max}"))
            }
            // Nothing was sent, and no agent is to blame: it is tried again.
            NoWayRoom::Now => AttemptFailure::new(
                Ending::OwnRefusal,
                "as many bytes of files are on their way to agents as can be (files.calls_bytes_max)",
            ),
        })
    }

    /// What leads to a file's bytes, unread.
    async fn way_to(&self, file: &StoredFile, scope: &TenantScope, deadline: Duration) -> Result<Way, AttemptFailure> {
        let mut way = Way::default();
        if file.media_type.starts_with("text/") && file.bytes <= TEXT_BYTES_MAX {
            way.text = Some(self.files.path(file));
            way.bytes = file.bytes;
        }
        let (here, url) = match &self.reach {
            Reach::Path => (true, None),
            Reach::PathAndUrl(address) => (true, Some(address)),
            Reach::Url(address) => (false, Some(address)),
            Reach::Sees { side_max } => {
                if let Some(copy) = self.picture_of(file, scope, *side_max).await? {
                    let length = tokio::fs::metadata(&copy.path).await.map_err(|error| failed(&error))?.len();
                    // Base64 makes four of three.
                    way.bytes = way.bytes.saturating_add(length.div_ceil(3).saturating_mul(4));
                    way.picture = Some(copy);
                }
                (false, None)
            }
        };
        if here {
            way.add(FILE_PATH, self.files.path(file).to_string_lossy().into_owned());
        }
        if let Some(address) = url {
            let good_for = u64::try_from(deadline.saturating_add(URL_SPARE).as_millis()).unwrap_or(u64::MAX);
            let signature = self.signer.sign(Purpose::ReadFile, &file.id, unix_ms().saturating_add(good_for));
            way.add("url", format!("{address}/v1/files/{}?signature={signature}", file.id));
        }
        Ok(way)
    }

    /// A picture's smaller copy; `None` for what is no picture.
    async fn picture_of(
        &self,
        file: &StoredFile,
        scope: &TenantScope,
        side_max: u32,
    ) -> Result<Option<PictureCopy>, AttemptFailure> {
        if !file.media_type.starts_with("image/") {
            return Ok(None);
        }
        match self.files.resized(scope.clone(), &file.id, side_max).await {
            Ok(Some(copy)) => Ok(Some(copy)),
            Ok(None) => Err(refused(format!("file {:?} is not there", file.id))),
            Err(FileError::NoPicture(why)) => Err(refused(format!("{}: {why}", file.name))),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// The input with what leads to each of its files. An agent on this machine would read any path that stands beside a file: none does but
/// ours.
fn filled(asked: &Value, mut read: HashMap<String, Map<String, Value>>, mut times: HashMap<String, usize>) -> Value {
    let mut input = asked.clone();
    input::change_files(&mut input, &mut |id, file| {
        let left = times.get_mut(id).map_or(0, |times| {
            *times = times.saturating_sub(1);
            *times
        });
        // The last one has what was read, the others copies of it.
        let way = if left == 0 { read.remove(id) } else { read.get(id).cloned() };
        file.extend(way.unwrap_or_default());
    });
    input
}

/// A request whose files are in place, and the room that they take.
struct Prepared {
    request: AttemptRequest,
    #[allow(dead_code, reason = "held for its drop")]
    place: WayPlace,
}

/// What a file's object gets.
#[derive(Default)]
struct Way {
    fields: Map<String, Value>,
    /// Where the text lies that goes along.
    text: Option<PathBuf>,
    /// The picture that goes along.
    picture: Option<PictureCopy>,
    /// All of it together, once it is read.
    bytes: u64,
}

impl Way {
    fn add(&mut self, name: &str, text: String) {
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        self.fields.insert(name.to_owned(), Value::String(text));
    }

    async fn read(self) -> Result<Map<String, Value>, AttemptFailure> {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let mut fields = self.fields;
        if let Some(path) = self.text
            && let Ok(text) = tokio::fs::read_to_string(path).await
        {
            fields.insert("text".to_owned(), Value::String(text));
        }
        if let Some(copy) = self.picture {
            let bytes = tokio::fs::read(&copy.path).await.map_err(|error| failed(&error))?;
            let url = format!("data:{};base64,{}", copy.media_type, STANDARD.encode(bytes));
            fields.insert("image_url".to_owned(), Value::String(url));
        }
        Ok(fields)
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
                Some(prepared) => self.inner.attempt(&prepared.request, progress).await,
                None => self.inner.attempt(request, progress).await,
            }
        })
    }

    fn refuses<'a>(&'a self, request: &'a AttemptRequest) -> BoxFuture<'a, Option<AttemptFailure>> {
        Box::pin(async move {
            match self.prepared(request).await {
                Ok(Some(prepared)) => self.inner.refuses(&prepared.request).await,
                Ok(None) => self.inner.refuses(request).await,
                // There may be room when the attempt is made.
                Err(failure) => (failure.ending != Ending::OwnRefusal).then_some(failure),
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

    const URL: &str = "http://127.0.0.1:7800";

    /// A store with one text of so many bytes in it, sent by this tenant.
    async fn store_with(folder: &tempfile::TempDir, text: &[u8], tenant: Option<&str>) -> (Arc<FileStore>, StoredFile) {
        let journal = SqliteJournal::open(JournalSettings::at(folder.path().join("journal.db"))).unwrap();
        let settings = FileSettings { call_bytes_max: 10_000, calls_bytes_max: 15_000, ..FileSettings::default() };
        let files = Arc::new(FileStore::new(journal, settings));
        let mut upload = files.upload(tenant.map(str::to_owned), "a.txt").await.unwrap();
        upload.write(text).await.unwrap();
        let sent = upload.finish().await.unwrap();
        (files, sent)
    }

    fn around(files: &Arc<FileStore>, reach: Reach) -> WithFiles {
        WithFiles::new(Arc::new(OutsideBackend), Arc::clone(files), Signer::of_chance().unwrap(), reach)
    }

    fn asked(input: &Value) -> AttemptRequest {
        AttemptRequest { tenant: None, ..request(input.clone()) }
    }

    /// Nothing that stands in an input is taken away or changed but what is a file of ours, wherever the agent runs.
    #[tokio::test]
    async fn only_files_of_ours_are_given_a_way_and_no_path_but_ours_stands_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let (files, sent) = store_with(&folder, b"a", None).await;
        let path = files.path(&sent).to_string_lossy().into_owned();
        let unknown = format!("file-{}", "0".repeat(32));
        for (reach, has_path, has_url) in [
            (Reach::Path, true, false),
            (Reach::PathAndUrl(URL.to_owned()), true, true),
            (Reach::Url(URL.to_owned()), false, true),
            (Reach::Sees { side_max: 64 }, false, false),
        ] {
            let backend = around(&files, reach);
            let foreign =
                json!({ "path": "/articles/7", "a": { "path": [1] }, "up": { "file_id": "file-abc", "path": "x" } });
            assert!(backend.prepared(&asked(&foreign)).await.unwrap().is_none(), "as it came");
            let mixed = json!({
                "of": foreign, "gone": { "file_id": unknown, "path": "/etc/passwd", "n": 1 },
                "file": { "file_id": sent.id, "path": "/etc/passwd", "deep": [{ "file_id": sent.id, "path": "/etc" }] },
            });
            let given = Value::clone(&backend.prepared(&asked(&mixed)).await.unwrap().unwrap().request.input);
            assert_eq!(given["of"], foreign);
            assert_eq!(given["gone"], json!({ "file_id": unknown, "n": 1 }), "nobody's, and no path beside it");
            for file in [&given["file"], &given["file"]["deep"][0]] {
                assert_eq!(file.get("path").and_then(Value::as_str), has_path.then_some(path.as_str()), "{given}");
                assert_eq!(file.get("url").is_some(), has_url, "{given}");
                assert_eq!(file["text"], "a", "each of them");
            }
        }
    }

    /// A text that is named many times is many times as much.
    #[tokio::test]
    async fn what_files_bring_along_is_counted_as_often_as_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (files, sent) = store_with(&folder, &[b'a'; 1_000], None).await;
        let backend = around(&files, Reach::Sees { side_max: 64 });
        let many = |times: usize| json!(vec![json!({ "file_id": sent.id }); times]);
        let failure = backend.prepared(&asked(&many(11))).await.err().unwrap();
        assert_eq!(failure.status, Some(422));
        let wanted = "the input's files bring 11000 bytes along; files.call_bytes_max is 10000";
        assert_eq!(failure.message, wanted);
        let ten = backend.prepared(&asked(&many(10))).await.unwrap().unwrap();
        let texts = ten.request.input.as_array().unwrap().iter();
        assert!(texts.map(|file| file["text"].as_str().unwrap().len()).all(|length| length == 1_000));
        tokio::time::pause();
        let failure = backend.prepared(&asked(&many(10))).await.err().unwrap();
        assert_eq!(failure.ending, Ending::OwnRefusal, "the first one still holds its room");
        assert!(backend.refuses(&asked(&many(10))).await.is_none(), "which says nothing about the request");
        drop(ten);
        assert!(backend.prepared(&asked(&many(10))).await.unwrap().is_some());
        assert_eq!(backend.refuses(&asked(&many(11))).await.and_then(|failure| failure.status), Some(422));
        // Paths count too: whoever names a file again and again makes more of each name.
        let here = around(&files, Reach::Path);
        assert!(here.prepared(&asked(&many(10))).await.is_err());
    }

    #[tokio::test]
    async fn files_of_another_tenant_are_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let (files, sent) = store_with(&folder, b"secret", Some("acme")).await;
        let backend = around(&files, Reach::PathAndUrl(URL.to_owned()));
        let input = json!({ "file": { "file_id": sent.id, "path": "/etc" } });
        let given = backend.prepared(&asked(&input)).await.unwrap().unwrap();
        assert_eq!(*given.request.input, json!({ "file": { "file_id": sent.id } }));
    }
}

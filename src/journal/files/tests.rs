//! The store against a real folder: whole or not at all, one tenant's or nobody's, gone with the last run, upright and bare.

use std::{io::Cursor, path::Path};

use image::{ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use serde_json::json;

use super::{
    store::{FileDeletion, FileError, FileSettings, FileStore},
    table::{StoredFile, insert, remove_by_id},
};
use crate::{
    journal::{
        journal::SqliteJournal,
        query::TenantScope,
        settings::JournalSettings,
        tests::support::{Place, T0, accept, append, finished, promise, record, step},
    },
    model::run::RunStatus,
    runtime::journal::{Acceptance, JournalError},
};

fn acme() -> TenantScope {
    TenantScope::One(Some("acme".into()))
}

async fn send(store: &FileStore, tenant: &str, name: &str, bytes: &[u8]) -> Result<StoredFile, FileError> {
    let mut upload = store.upload(Some(tenant.to_owned()), name).await?;
    for piece in bytes.chunks(1_000) {
        upload.write(piece).await?;
    }
    upload.finish().await
}

/// Files below `folder`, whatever they are.
fn files_below(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries.map(|entry| entry.unwrap().path()).map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}

/// Agents on this machine are told a file's path, and work in a folder of their own.
#[tokio::test]
async fn a_journal_that_is_named_relatively_gives_whole_paths() {
    let place = Place::new();
    let up: std::path::PathBuf = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect();
    let relative = up.join(place.path().strip_prefix("/").unwrap());
    let settings = JournalSettings::at(relative);
    assert!(settings.files.is_relative());
    let journal = SqliteJournal::open(settings).unwrap();
    let store = FileStore::new(journal, FileSettings::default());
    let sent = send(&store, "acme", "notes.md", b"# A walk").await.unwrap();
    let path = store.path(&sent);
    assert!(path.is_absolute(), "{path:?}");
    assert_eq!(std::fs::read(path).unwrap(), b"# A walk");
}

#[tokio::test]
async fn a_file_is_its_tenants_and_its_bytes_lie_there_once() {
    let place = Place::new();
    let journal = place.open();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let one = send(&store, "acme", "../notes.md", b"# A walk").await.unwrap();
    let two = send(&store, "other", "b.txt", b"# A walk").await.unwrap();
    assert_eq!((one.name.as_str(), one.media_type.as_str(), one.bytes), ("notes.md", "text/markdown", 8));
    assert!(one.id != two.id && one.hash == two.hash);
    assert_eq!(files_below(&journal.settings().files), 1);
    assert_eq!(store.file(acme(), &one.id).await.unwrap().unwrap(), one);
    for scope in [TenantScope::One(None), TenantScope::One(Some("other".into())), TenantScope::One(Some("new".into()))]
    {
        assert_eq!(store.file(scope.clone(), &one.id).await, Ok(None));
        assert_eq!(store.delete(scope.clone(), &one.id).await, Ok(FileDeletion::NotFound));
        assert!(store.open(scope, &one.id).await.unwrap().is_none());
    }
    assert_eq!(store.delete(acme(), &one.id).await, Ok(FileDeletion::Done));
    assert_eq!(std::fs::read(store.path(&two)).unwrap(), b"# A walk");
    assert_eq!(store.delete(TenantScope::All, &two.id).await, Ok(FileDeletion::Done));
    assert_eq!(files_below(&journal.settings().files), 0);
}

#[tokio::test]
async fn what_is_not_whole_leaves_nothing() {
    let place = Place::new();
    let journal = place.open();
    let settings = FileSettings { bytes_max: 2_500, files_max: 2, uploads_max: 2, ..FileSettings::default() };
    let store = FileStore::new(journal.clone(), settings);
    assert_eq!(send(&store, "acme", "a", &[1; 2_501]).await, Err(FileError::TooLarge { bytes_max: 2_500 }));
    let mut cut = store.upload(None, "cut").await.unwrap();
    cut.write(b"half").await.unwrap();
    let second = store.upload(None, "second").await.unwrap();
    assert_eq!(store.upload(None, "third").await.unwrap_err(), FileError::Busy);
    drop((cut, second));
    assert_eq!(files_below(&journal.settings().files), 0);
    send(&store, "acme", "a", &[1; 2_500]).await.unwrap();
    send(&store, "acme", "b", b"2").await.unwrap();
    assert_eq!(send(&store, "acme", "c", b"3").await, Err(FileError::TooMany));
    send(&store, "other", "c", b"3").await.unwrap();
    assert_eq!(files_below(&journal.settings().files), 3);
}

/// A file may go between the question whether it is there and the run's acceptance: with its only run, by its owner, or by its age.
#[tokio::test]
async fn a_run_whose_file_is_gone_is_not_accepted_and_leaves_nothing() {
    let place = Place::new();
    let journal = place.open();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let file = send(&store, "acme", "a.txt", b"a").await.unwrap();
    let foreign = send(&store, "other", "b.txt", b"b").await.unwrap();
    let naming = |run_id: &str, photos: &serde_json::Value| {
        let mut run = place.run(run_id);
        run.idempotency = promise("key", run_id);
        run.input.insert("photos".into(), photos.clone());
        run
    };
    let (own, anothers) = (json!([{ "file_id": file.id, "bytes": 1 }]), json!([{ "of": { "file_id": foreign.id } }]));
    let gone = |file_id: &str| Err(JournalError::NoFile { file_id: file_id.to_owned() });
    assert_eq!(accept(&journal, naming("not-ours", &anothers)).await, gone(&foreign.id));
    accept(&journal, naming("first", &own)).await.unwrap();
    let record = record("first", RunStatus::Failed, vec![step("draft", json!(1))], T0);
    assert!(append(&journal, "first", 0, vec![finished(record)]).await);
    journal.delete_run(acme(), "first").await.unwrap();
    // As a repair of it asks, that read it before: its only file went with it.
    let (again, well) = (naming("again", &own), naming("well", &json!([file.id])));
    let (again, well) = tokio::join!(accept(&journal, again), accept(&journal, well));
    assert_eq!(again, gone(&file.id));
    // Neither its promise nor a trace of it stands in the way, and whoever was written with it is.
    assert_eq!(well, Ok(Acceptance::New));
    assert!(journal.accepted("again").await.unwrap().is_none());
    assert!(journal.accepted("well").await.unwrap().is_some());
    assert_eq!(store.delete(TenantScope::All, &foreign.id).await, Ok(FileDeletion::Done));
}

#[tokio::test]
async fn a_file_goes_with_the_last_run_that_names_it() {
    let place = Place::new();
    let journal = place.open();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let file = send(&store, "acme", "a.txt", b"a").await.unwrap();
    let foreign = send(&store, "other", "b.txt", b"b").await.unwrap();
    for run_id in ["r1", "r2"] {
        let mut run = place.run(run_id);
        run.input.insert("photos".into(), json!([{ "file_id": file.id }, [file.id], foreign.id]));
        accept(&journal, run).await.unwrap();
        let record = record(run_id, RunStatus::Completed, vec![step("draft", json!(1))], T0);
        assert!(append(&journal, run_id, 0, vec![finished(record)]).await);
    }
    assert_eq!(store.file(acme(), &file.id).await.unwrap().unwrap().runs, 2);
    assert_eq!(store.file(TenantScope::All, &foreign.id).await.unwrap().unwrap().runs, 0);
    assert_eq!(store.delete(acme(), &file.id).await, Ok(FileDeletion::InUse));
    journal.delete_run(acme(), "r1").await.unwrap();
    assert!(store.path(&file).exists());
    journal.delete_run(acme(), "r2").await.unwrap();
    assert_eq!(store.file(TenantScope::All, &file.id).await, Ok(None));
    assert!(!store.path(&file).exists());
    // One that no run names goes after its time.
    place.pass_ms(25 * 3_600 * 1_000);
    journal.tidy().await.unwrap();
    assert!(!store.path(&foreign).exists());
}

/// Whatever is written in one transaction: bytes that lose their last owner and find another one in it stay.
#[tokio::test]
async fn bytes_that_find_an_owner_in_the_same_transaction_stay() {
    let place = Place::new();
    let journal = place.open();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let first = send(&store, "acme", "a.txt", b"same").await.unwrap();
    let second = StoredFile { id: "file-second".to_owned(), tenant: Some("other".to_owned()), ..first.clone() };
    let third = StoredFile { id: "file-third".to_owned(), ..second.clone() };
    let (gone, new) = (first.id.clone(), second.clone());
    let written = journal.write(move |within| {
        remove_by_id(within, &gone)?;
        insert(within, &new)
    });
    written.await.unwrap();
    assert_eq!(std::fs::read(store.path(&second)).unwrap(), b"same");
    let written = journal.write(move |within| {
        remove_by_id(within, "file-second")?;
        insert(within, &third)?;
        remove_by_id(within, "file-third")
    });
    written.await.unwrap();
    assert!(!store.path(&second).exists(), "nobody has them");
}

/// A JPEG that lies on its side, as cameras send it: EXIF says so, and where it was taken.
fn photo_on_its_side() -> Vec<u8> {
    let mut jpeg = Cursor::new(Vec::new());
    // Left half red, right half blue.
    let pixels = RgbImage::from_fn(400, 200, |x, _| if x < 200 { Rgb([250, 0, 0]) } else { Rgb([0, 0, 250]) });
    pixels.write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
    let mut exif = b"Exif\0\0MM\0\x2A\0\0\0\x08\0\x02".to_vec();
    exif.extend(b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"); // Orientation: turn right by a quarter.
    exif.extend(b"\x01\x0F\0\x02\0\0\0\x07\0\0\0\x26"); // Maker, at 38.
    exif.extend(b"\0\0\0\0SECRET\0");
    let bytes = jpeg.into_inner();
    let length = u16::try_from(exif.len() + 2).unwrap().to_be_bytes();
    [&bytes[..2], &[0xFF, 0xE1], &length, &exif, &bytes[2..]].concat()
}

#[tokio::test]
async fn a_smaller_copy_is_upright_and_bare() {
    let place = Place::new();
    let journal = place.open();
    let store = FileStore::new(journal.clone(), FileSettings::default());
    let photo = photo_on_its_side();
    assert!(photo.windows(6).any(|window| window == b"SECRET"));
    let file = send(&store, "acme", "a.jpg", &photo).await.unwrap();
    assert_eq!(file.media_type, "image/jpeg");
    assert_eq!(store.resized(TenantScope::One(None), &file.id, 100).await, Ok(None));
    let copy = store.resized(acme(), &file.id, 100).await.unwrap().unwrap();
    let bytes = std::fs::read(&copy.path).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"Exif") && !bytes.windows(6).any(|window| window == b"SECRET"));
    let seen = image::load_from_memory(&bytes).unwrap().to_rgb8();
    assert_eq!(seen.dimensions(), (50, 100));
    let (top, bottom) = (seen.get_pixel(25, 10).0, seen.get_pixel(25, 90).0);
    assert!(top[0] > 200 && top[2] < 60 && bottom[2] > 200 && bottom[0] < 60, "{top:?} {bottom:?}");
    // A small picture stays as small, but loses its EXIF all the same.
    let same = store.resized(acme(), &file.id, 5_000).await.unwrap().unwrap();
    let bytes = std::fs::read(&same.path).unwrap();
    assert!(!bytes.windows(4).any(|window| window == b"Exif"));
    assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgb8().dimensions(), (200, 400));
    store.delete(acme(), &file.id).await.unwrap();
    assert!(!copy.path.exists() && !same.path.exists());
}

#[tokio::test]
async fn what_is_transparent_becomes_white() {
    let place = Place::new();
    let store = FileStore::new(place.open(), FileSettings::default());
    let mut png = Cursor::new(Vec::new());
    RgbaImage::from_pixel(64, 64, Rgba([0, 0, 0, 0])).write_to(&mut png, ImageFormat::Png).unwrap();
    let file = send(&store, "acme", "a.png", &png.into_inner()).await.unwrap();
    let copy = store.resized(acme(), &file.id, 32).await.unwrap().unwrap();
    let seen = image::open(&copy.path).unwrap().to_rgb8();
    assert!(seen.pixels().all(|pixel| pixel.0.iter().all(|channel| *channel > 250)));
}

/// A PNG that says it has so many pixels and holds none.
fn bomb(side: u32) -> Vec<u8> {
    let mut png = Cursor::new(Vec::new());
    RgbImage::new(1, 1).write_to(&mut png, ImageFormat::Png).unwrap();
    let mut bytes = png.into_inner();
    bytes[16..20].copy_from_slice(&side.to_be_bytes());
    bytes[20..24].copy_from_slice(&side.to_be_bytes());
    let sum = bytes[12..29].iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xEDB8_8320 } else { sum >> 1 })
    });
    bytes[29..33].copy_from_slice(&(!sum).to_be_bytes());
    bytes
}

#[tokio::test]
async fn bombs_and_broken_pictures_are_told_so() {
    let place = Place::new();
    let store = FileStore::new(place.open(), FileSettings::default());
    let jpeg = photo_on_its_side();
    for (name, bytes) in [
        ("large", bomb(25_000)),
        ("huge", bomb(2_000_000_000)),
        ("cut", jpeg[..100].to_vec()),
        ("head", jpeg[..4].to_vec()),
        ("heif", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic".to_vec()),
        ("text", b"no picture".to_vec()),
    ] {
        let file = send(&store, "acme", name, &bytes).await.unwrap();
        let refused = store.resized(acme(), &file.id, 100).await;
        assert!(matches!(refused, Err(FileError::NoPicture(_))), "{name}: {refused:?}");
    }
    assert_eq!(files_below(&place.folder.path().join("journal.files/uploads")), 0);
}

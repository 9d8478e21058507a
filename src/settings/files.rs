//! `[files]`: what is taken of files, and how large a model that sees gets its pictures.

use std::time::Duration;

use super::{general::LIMIT_BYTES_MAX, journal::SIZE_BYTES_MAX, keep::keep_or_for_ever, reader::Reader};

const COUNT_MAX: u64 = 1_000_000_000;
/// The most pictures, and the most uploads, at once.
const AT_ONCE_MAX: u64 = 10_000;
/// The longest side of a smaller copy that can be asked for, in pixels.
const SIDE_MAX: u64 = 8_192;
/// What vendors take as one request, more or less.
const CALL_BYTES: u64 = 32 * 1024 * 1024;
const CALLS_BYTES: u64 = 256 * 1024 * 1024;

/// `[files]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesTable {
    /// Bytes of a file.
    pub file_bytes_max: u64,
    /// Files of a tenant.
    pub tenant_files_max: u64,
    /// Bytes of all files of a tenant.
    pub tenant_bytes_max: u64,
    /// Files on their way in at once.
    pub uploads_max: usize,
    /// Pictures that are made smaller at once.
    pub pictures_max: usize,
    /// Bytes that files bring along into one call: texts, pictures, paths and URLs, as often as they are named.
    pub call_bytes_max: u64,
    /// The same of all calls at once.
    pub calls_bytes_max: u64,
    /// The longer side of a copy for models that see, in pixels.
    pub picture_side_max: u32,
    /// How long a file stays that no run names; `None` = for ever.
    pub unused_keep: Option<Duration>,
}

/// Reads `[files]`.
pub(super) fn read_files(root: &mut Reader<'_, '_>) -> FilesTable {
    let mut reader = root.table("files");
    let mut number = |key: &'static str, min: u64, max: u64, default: u64| {
        let value = reader.whole(key, min, max).unwrap_or(default);
        reader.explain(key, value.to_string());
        value
    };
    let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let table = FilesTable {
        file_bytes_max: number("file_bytes_max", 1, LIMIT_BYTES_MAX, 64 * 1024 * 1024),
        tenant_files_max: number("tenant_files_max", 1, COUNT_MAX, 100_000),
        tenant_bytes_max: number("tenant_bytes_max", 1, SIZE_BYTES_MAX, 64 * 1024 * 1024 * 1024),
        uploads_max: small(number("uploads_max", 1, AT_ONCE_MAX, 64)),
        pictures_max: small(number("pictures_max", 1, AT_ONCE_MAX, 2)),
        call_bytes_max: number("call_bytes_max", 1, LIMIT_BYTES_MAX, CALL_BYTES),
        calls_bytes_max: number("calls_bytes_max", 1, SIZE_BYTES_MAX, CALLS_BYTES),
        picture_side_max: u32::try_from(number("picture_side_max", 16, SIDE_MAX, 1_536)).unwrap_or(u32::MAX),
        unused_keep: None,
    };
    if table.calls_bytes_max < table.call_bytes_max {
        reader.refuse("calls_bytes_max", format!("must be at least files.call_bytes_max = {}", table.call_bytes_max));
    }
    let unused_keep = keep_or_for_ever(&mut reader, "unused_keep", Some(Duration::from_secs(24 * 3_600)));
    reader.finish(&[]);
    FilesTable { unused_keep, ..table }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::Given;

    #[test]
    fn defaults_changes_and_mistakes() {
        let plain = Given::config("").load().unwrap().files;
        assert_eq!((plain.file_bytes_max, plain.picture_side_max), (67_108_864, 1_536));
        assert_eq!(plain.unused_keep, Some(Duration::from_secs(86_400)));
        let text = "[files]\nfile_bytes_max = 1000\ntenant_files_max = 5\npictures_max = 8\nunused_keep = '2h'\n";
        let changed = Given::config(text).load().unwrap().files;
        let wanted = FilesTable {
            file_bytes_max: 1_000,
            tenant_files_max: 5,
            pictures_max: 8,
            unused_keep: Some(Duration::from_secs(7_200)),
            ..plain
        };
        assert_eq!(changed, wanted);
        let small = Given::config("[files]\ncalls_bytes_max = 1000\n").load().unwrap_err().to_string();
        let wanted = "w.toml:2: files.calls_bytes_max = 1000: must be at least files.call_bytes_max = 33554432";
        assert_eq!(small.lines().next(), Some(wanted));
        let error = Given::config("[files]\npicture_side_max = 9000\nbytes_max = 1\n").load().unwrap_err().to_string();
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines[0], "w.toml:2: files.picture_side_max = 9000: must be a whole number from 16 to 8192");
        assert!(lines[1].starts_with("w.toml:3: files.bytes_max = 1: unknown key"), "{error}");
    }
}

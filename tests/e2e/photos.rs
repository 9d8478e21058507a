//! Photos that are none: each is kept and its problem told.

use std::fs::{File, copy};

use serde_json::Value;

use crate::{
    process::watertight,
    project::{MOMENTLY, PHOTOS, example, put, step, text},
};

/// A JPEG whose block of EXIF is noise.
fn garbage_exif() -> Vec<u8> {
    let mut bytes = vec![0xff, 0xd8, 0xff, 0xe1, 0x01, 0x00];
    bytes.extend(b"Exif\0\0II*\0\x08\0\0\0\xff\xff");
    bytes.extend((0..240_u32).map(|at| u8::try_from(at * 97 % 251).unwrap()));
    bytes.extend([0xff, 0xd9]);
    bytes
}

#[test]
fn nothing_is_lost() {
    let input = tempfile::tempdir().unwrap();
    let photos = input.path().join("photos");
    put(&photos, "10-text.jpg", "this is no picture".as_bytes());
    put(&photos, "11-empty.jpg", b"");
    put(&photos, "12-noise.jpg", &garbage_exif());
    for name in &PHOTOS[..2] {
        copy(example("input/photos").join(name), photos.join(name)).unwrap();
    }
    // Two hundred megabytes that take no room on the disk.
    File::create(photos.join("13-large.jpg")).unwrap().set_len(200 * 1024 * 1024).unwrap();
    let args = ["run", MOMENTLY, "--input", text(input.path()), "--json", "--quiet"];
    let ended = watertight(&args);
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    let json = ended.json();
    let facts = step(&json, "photos")["output"]["photos"].as_array().unwrap();
    let names: Vec<&str> = facts.iter().map(|photo| photo["name"].as_str().unwrap()).collect();
    assert_eq!(names, [PHOTOS[0], PHOTOS[1], "10-text.jpg", "11-empty.jpg", "12-noise.jpg", "13-large.jpg"]);
    for photo in facts {
        let good = PHOTOS.contains(&photo["name"].as_str().unwrap());
        assert_eq!(photo["problem"] == Value::Null, good, "{photo}");
    }
    let post = json["output"]["markdown"].as_str().unwrap();
    for name in names {
        assert!(post.contains(name), "{name} is lost:\n{post}");
    }
}
